"""How requests that name no version are divided between versions of a model. Imported only where a split stands."""
