"""The devices and cores of this machine, and which slot gets which. Discovery reads the system; the plan is pure."""
