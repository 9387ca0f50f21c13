"""The dashboard: pages rendered by the gateway. The template library is imported with the first page."""
