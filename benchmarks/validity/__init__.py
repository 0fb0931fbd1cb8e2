"""Whether Seesaw's figures are right, and how sure they are: its own analysis of answers drawn from known worlds."""
