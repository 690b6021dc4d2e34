"""The answer in the forms people and programs take it in."""
