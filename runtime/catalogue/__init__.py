"""Devices that can be named: whose operators answer for each, and how far they are off on another device."""
