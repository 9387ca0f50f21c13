"""The dashboard: pages rendered by the gateway. Imports what the gateway does; the template library once a page is wanted."""
