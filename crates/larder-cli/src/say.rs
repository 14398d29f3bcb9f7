//! Writes to the tool's own standard streams. Who reads them may be gone, and a disk may be full: that is no reason for a panic, which
//! would end the tool with a status that says nothing about the program under it.

use std::fmt;
use std::io::{self, Write};

use crate::exit::Failure;

/// Says something about the run on standard error, formatted as `println` would, after the tool's name.
macro_rules! note {
    ($($words:tt)*) => { $crate::say::note(format_args!($($words)*)) };
}

/// A line on standard error, after the tool's name.
pub fn note(words: fmt::Arguments<'_>) {
    error(&format!("larder: {words}\n"));
}

/// A text on standard error, which is lost where nobody can take it.
pub fn error(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// A text on standard output. A reader that has seen enough is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::tool(format!("standard output cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}
