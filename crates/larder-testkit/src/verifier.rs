//! A second, simple, serial marker, and a walk over every cell: they check each cycle while the world is still stopped.
//!
//! The verifier shares no code with the marker it checks: it has its own bitmap, its own stack, its own look-up by
//! division, and follows only what it knows to be reachable (roots that tests register as ranges of exact addresses).
//! It uses memory that it mapped before, never malloc: a stopped thread may hold malloc's lock.
