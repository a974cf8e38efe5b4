"""`trl-miner data`: makes a recipe from a data set, once its preview refuses nothing."""
