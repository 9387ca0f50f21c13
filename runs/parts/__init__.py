"""Runs of many parts: how an input is split, what one part writes, how parts are joined. Imports sources, sinks, manifest."""
