"""A measured step compared with the predicted one: from traces, operator by operator, or from a training log."""
