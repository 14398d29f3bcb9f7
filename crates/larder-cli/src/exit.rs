//! Exit statuses of the tool, as those of `env` and `timeout`.

use std::fmt;

/// The tool itself failed.
pub const TOOL: u8 = 125;
/// The program is there but cannot run.
pub const CANNOT_RUN: u8 = 126;
/// The program was not found.
pub const NOT_FOUND: u8 = 127;

/// Why the tool gives up: what is wrong and what to do, with the status that it ends with.
#[derive(Debug)]
pub struct Failure {
    /// One or more whole lines, without the tool's name.
    pub message: String,
    /// One of the statuses above.
    pub status: u8,
}

impl Failure {
    /// The tool itself cannot go on.
    pub fn tool(message: impl fmt::Display) -> Self {
        Failure { message: message.to_string(), status: TOOL }
    }

    /// The program cannot run.
    pub fn cannot_run(message: impl fmt::Display) -> Self {
        Failure { message: message.to_string(), status: CANNOT_RUN }
    }

    /// The program was not found.
    pub fn not_found(message: impl fmt::Display) -> Self {
        Failure { message: message.to_string(), status: NOT_FOUND }
    }
}
