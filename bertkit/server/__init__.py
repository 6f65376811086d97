"""Serves models over HTTP: the routes of TEI and OpenAI, a few of our own, and a page to try them."""
