"""`seesaw store`: what stores hold, and cleaning, moving and bringing together what is in them."""
