"""Does a direction in the residual stream move behaviour, and does it hide what was unlearned?"""
