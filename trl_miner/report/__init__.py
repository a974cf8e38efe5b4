"""What runs have logged, as one picture, one table and a few facts; and each token's credit."""
