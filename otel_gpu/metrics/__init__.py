"""What is measured, declared once (catalogue), and the points of a cycle that follow from its Report."""
