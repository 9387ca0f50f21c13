"""`penstock bench`: loads a model or any HTTP endpoint, measures it from outside and inside, reports. Imports all but cli."""
