"""A measured step beside the predicted one: from traces, operator by operator, or from a training log."""
