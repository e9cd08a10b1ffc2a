"""Software stacks: what a training framework does to sums of operators, fitted once and carried to any hardware."""
