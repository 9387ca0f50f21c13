"""What this machine has for models, and which slot gets what: discovery at the edge, the plan pure. Imports core alone."""
