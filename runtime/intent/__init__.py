"""Questions of people who do not ask for one layout: the best one, on which hardware, how many devices, how large."""
