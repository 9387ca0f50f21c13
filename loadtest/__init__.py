"""`penstock bench`: loads a model or any HTTP endpoint, measures it, reports. May import all but tune and cli."""
