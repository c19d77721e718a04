//! The daemon's log: one line per event on standard error, as text or as JSON.
//!
//! Owns the choice of format. Text is `TIME LEVEL message field=value`, in colours on a terminal;
//! control characters are escaped, so that a name which a program chose cannot forge a line. JSON
//! is one object per line with `timestamp`, `level`, `message` and the event's fields. Times are
//! UTC (RFC 3339). `queue` passes the lines to standard error; a thread that logs never waits for
//! their reader. `panics` has the line that a panic leaves.

pub mod panics;
mod queue;

use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use tracing::field::Field;
use tracing::{Dispatch, Level};
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

use queue::Queue;

/// Maximum time for which the end of the process waits for the reader of the log.
const PATIENCE: Duration = Duration::from_secs(1);

/// How a line of the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

/// The log of this process. Dropping it waits until its lines are written.
#[derive(Debug)]
pub struct Log(Arc<Queue>);

impl Drop for Log {
    fn drop(&mut self) {
        self.0.flush(PATIENCE);
    }
}

/// Logs events up to `level` to standard error, for the life of the process.
///
/// # Errors
/// If the process has a log already, or the kernel refuses a thread.
pub fn start(level: Level, format: LogFormat) -> anyhow::Result<Log> {
    let colour =
        io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|text| text.is_empty());
    let stderr = io::stderr().as_fd().try_clone_to_owned().context("cannot use standard error")?;
    let stderr = Arc::new(File::from(stderr));
    let direct = Arc::clone(&stderr);
    let report = move |lines| report_lost(lines, &dispatch(Level::WARN, format, colour, Arc::clone(&direct)));
    let queue = Queue::start(stderr, report).context("cannot start a thread for the log")?;
    tracing::dispatcher::set_global_default(dispatch(level, format, colour, Arc::clone(&queue)))
        .context("cannot start the log")?;
    Ok(Log(queue))
}

/// Returns what writes events up to `level` to `writer`.
fn dispatch<W>(level: Level, format: LogFormat, colour: bool, writer: W) -> Dispatch
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let log = tracing_subscriber::fmt().with_max_level(level).with_target(false).with_ansi(colour);
    let log = log.log_internal_errors(false).with_writer(writer);
    match format {
        LogFormat::Text => log.fmt_fields(debug_fn(write_field).delimited(" ")).finish().into(),
        LogFormat::Json => {
            log.json().flatten_event(true).with_current_span(false).with_span_list(false).finish().into()
        }
    }
}

fn report_lost(lines: u64, log: &Dispatch) {
    tracing::dispatcher::with_default(log, || {
        tracing::warn!(lines, "lines of this log were lost: its reader had stopped");
    });
}

/// Writes the message, or `name=value`. Text is in quotes only where its end would not be seen.
fn write_field(out: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let text = format!("{value:?}");
    if field.name() == "message" {
        return write_escaped(out, &text);
    }
    write!(out, "{}=", field.name())?;
    let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    let bare = quoted.unwrap_or(&text);
    match bare.is_empty() || bare.contains([' ', '"', '=', '\\']) {
        false => write_escaped(out, bare),
        true if quoted.is_some() => write_escaped(out, &text),
        true => write!(out, "{text:?}"),
    }
}

/// Writes the text with its control characters as escapes.
fn write_escaped(out: &mut Writer<'_>, text: &str) -> fmt::Result {
    text.chars().try_for_each(|c| match c.is_control() {
        true => write!(out, "{}", c.escape_default()),
        false => out.write_char(c),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use serde_json::Value;

    use super::*;

    /// Returns what is logged of the same events in this format.
    fn logged(format: LogFormat, colour: bool) -> String {
        let (mut reader, writer) = io::pipe().unwrap();
        let log =
            dispatch(Level::INFO, format, colour, Arc::new(File::from(std::os::fd::OwnedFd::from(writer))));
        tracing::dispatcher::with_default(&log, || {
            let absent: Option<u64> = None;
            tracing::info!(name = "a b", count = 3, port = Some("tap"), absent, "ready");
            tracing::warn!(error = %"first\nsecond\x1b[1m", "two\nlines");
            tracing::warn!(name = "x\ny\" z", path = %"\"\n\"", list = ?["a", "b"], empty = "", "names");
            tracing::debug!("not logged");
        });
        drop(log);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_line_of_text_has_no_colours_control_characters_or_absent_fields() {
        let text = logged(LogFormat::Text, false);
        let lines: Vec<&str> = text.lines().map(|line| line.split_once(' ').unwrap().1).collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(lines[0], r#" INFO ready name="a b" count=3 port=tap"#);
        assert_eq!(lines[1], r" WARN two\nlines error=first\nsecond\u{1b}[1m");
        assert_eq!(lines[2], r#" WARN names name="x\ny\" z" path=\n list="[\"a\", \"b\"]" empty="""#);
    }

    #[test]
    fn colours_are_around_the_time_and_the_level_only() {
        let text = logged(LogFormat::Text, true);
        assert!(text.contains("\x1b[32m INFO\x1b[0m ready name=\"a b\" count=3 port=tap\n"), "{text:?}");
    }

    #[test]
    fn json_has_numbers_as_numbers_and_text_as_it_is() {
        let text = logged(LogFormat::Json, true);
        let documents: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [ready, warning, _] = documents.as_slice() else { panic!("{text}") };
        assert_eq!((&ready["level"], &ready["message"]), (&"INFO".into(), &"ready".into()));
        assert_eq!((&ready["name"], &ready["count"]), (&"a b".into(), &3.into()));
        assert!(ready.get("absent").is_none() && ready["timestamp"].is_string(), "{ready}");
        assert_eq!((&warning["level"], &warning["message"]), (&"WARN".into(), &"two\nlines".into()));
        assert_eq!(warning["error"], "first\nsecond\x1b[1m");
    }
}
