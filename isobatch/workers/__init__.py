"""Processes that train one run together: how they come to be, find each other and are watched."""
