from .calibrate import calibrate as calibrate
from .program_size import batch_for as batch_for
from .saved_profile import this_machine as this_machine
