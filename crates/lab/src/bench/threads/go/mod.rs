//! The sources of the Go program.

use anyhow::Result;

use crate::go::GoProgram;

const SOURCES: [(&str, &str); 2] =
    [("main.go", include_str!("main.go")), ("stamp_amd64.s", include_str!("stamp_amd64.s"))];

/// Compiles the program; `None` without a toolchain.
pub fn build() -> Result<Option<GoProgram>> {
    GoProgram::build("threads", &SOURCES)
}
