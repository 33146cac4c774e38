"""The engine, for one file and for many: a request comes in, batches of rows or one table go out.

``request`` checks the caller's arguments and makes a :class:`ScanRequest`. ``file_planner`` plans a request for one
version of a file (:class:`ScanPlan`), with ``column_resolution`` (names to leaf columns) and ``fetch_planner`` (row
groups, pages, and rounds of requests). A plan is cut into units: amounts of data that are fetched at once and delivered
in row order. ``executor`` runs the plans of one file or of many, ``prefetch`` fetches their units ahead, ``file_scan``
fetches and decodes one unit, and ``stream`` returns the rows as batches. ``plan`` explains a plan.
"""
