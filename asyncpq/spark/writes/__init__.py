"""Files written by tasks, and the commit that makes them visible."""
