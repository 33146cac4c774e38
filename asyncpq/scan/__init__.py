"""The engine, for one file and for many: a request comes in, batches of rows or one table go out.

``request`` checks what a caller asks (:class:`ScanRequest`, keys of a lookup); ``planner`` makes of it and of one
version of a file a :class:`ScanPlan`, with ``columns`` (names to leaves) and ``page_planner`` (row groups and pages);
``executor`` runs the plans of one file or of many, ``prefetch`` fetches their units ahead, ``file_scan`` fetches and
decodes one unit, and ``stream`` gives the rows out as batches. ``plan`` explains a plan.
"""
