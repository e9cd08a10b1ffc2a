"""A commons: measurements that sites publish as folders of static files, and that others pull from there."""
