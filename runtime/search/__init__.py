"""Every valid layout of a model on a number of devices, evaluated in bulk: `search`, its question and its result."""
