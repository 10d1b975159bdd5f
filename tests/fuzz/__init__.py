"""Files, rows and texts that came to harm, led by the lines that they reach: `python -m tests.fuzz --minutes 20`.

Whatever is opened or parsed is taken, or refused by an error of qstore's own, with the file as it was: never a crash, a
hang, or an error of a library. Inputs that reach new lines are kept and harmed further.
"""
