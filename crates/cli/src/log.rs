//! The daemon's log: one line per event on standard error, as text or as JSON.
//!
//! Owns both formats. Text is `TIME LEVEL message field=value`, with the level in colour on a
//! terminal; control characters are escaped, so that a name which a program chose cannot forge a
//! line. JSON is one object per line with `timestamp`, `level`, `message` and the event's fields.
//! Times are UTC (RFC 3339). Spans are not logged. Lines that a reader does not take are lost and
//! counted: it may have stopped, and programs do not wait for it.

mod outlet;

use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::ValueEnum;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use outlet::Outlet;

/// How long a line waits for a reader of the log.
const PATIENCE: Duration = Duration::from_secs(1);

/// How a line of the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

/// Logs events up to `level` to standard error, for the life of the process.
///
/// # Errors
/// If the process has a log already.
pub fn start(level: Level, format: LogFormat) -> anyhow::Result<()> {
    let colour =
        io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|text| text.is_empty());
    let log = Log::new(level, format, colour, Outlet::new(io::stderr(), PATIENCE));
    tracing::subscriber::set_global_default(log).context("cannot start the log")
}

/// See the [module](self).
struct Log<W> {
    level: Level,
    format: LogFormat,
    colour: bool,
    out: Mutex<Out<W>>,
}

/// Where lines go.
struct Out<W> {
    writer: W,
    /// Lines that it has not taken since the last one that it has.
    lost: u64,
}

impl<W: Write> Log<W> {
    fn new(level: Level, format: LogFormat, colour: bool, writer: W) -> Self {
        Self { level, format, colour, out: Mutex::new(Out { writer, lost: 0 }) }
    }

    fn line(&self, level: Level, fields: &Fields) -> String {
        let time = timestamp(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        match self.format {
            LogFormat::Text => text_line(&time, level, self.colour, fields),
            LogFormat::Json => json_line(&time, level, fields),
        }
    }
}

impl<W: Write + 'static> Subscriber for Log<W> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::from_level(self.level))
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let line = self.line(*event.metadata().level(), &fields);
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        // One write, so that lines of several processes on one terminal do not mix.
        let result = match out.lost {
            0 => out.writer.write_all(line.as_bytes()),
            lost => out.writer.write_all((self.line(Level::WARN, &Fields::of_lost(lost)) + &line).as_bytes()),
        };
        out.lost = if result.is_ok() { 0 } else { out.lost + 1 };
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The message and the other fields of an event, in their order.
#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, Value)>,
}

impl Fields {
    fn of_lost(lines: u64) -> Self {
        let message = "lines of this log were lost: its reader had stopped".to_owned();
        Self { message, others: vec![("lines", lines.into())] }
    }

    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        self.others.push((field.name(), value.into()));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            _ => self.add(field, format!("{value:?}")),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            _ => self.add(field, value),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }
}

fn text_line(time: &str, level: Level, colour: bool, fields: &Fields) -> String {
    let code = match level {
        Level::ERROR => 31,
        Level::WARN => 33,
        Level::INFO => 32,
        _ => 36,
    };
    let (on, off) = if colour { (format!("\x1b[{code}m"), "\x1b[0m") } else { (String::new(), "") };
    let mut line = format!("{time} {on}{level:>5}{off} {}", escape(&fields.message));
    for (name, value) in &fields.others {
        let value = match value {
            Value::String(text) if text.is_empty() || text.contains([' ', '"', '=']) => format!("{text:?}"),
            Value::String(text) => escape(text),
            other => other.to_string(),
        };
        // Writing to a string cannot fail.
        let _ = write!(line, " {name}={value}");
    }
    line.push('\n');
    line
}

/// Returns the text with its control characters written as escapes.
fn escape(text: &str) -> String {
    let escaped = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(escaped).collect()
}

fn json_line(time: &str, level: Level, fields: &Fields) -> String {
    let message = Value::from(fields.message.as_str());
    let mut line = format!(r#"{{"timestamp":"{time}","level":"{level}","message":{message}"#);
    for (name, value) in &fields.others {
        let _ = write!(line, r#","{name}":{value}"#);
    }
    line.push_str("}\n");
    line
}

/// Returns a time since the Unix epoch in UTC, as in `2026-11-22T19:54:08.123456Z`.
fn timestamp(since_epoch: Duration) -> String {
    let (days, second) = (since_epoch.as_secs() / 86_400, since_epoch.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:06}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since_epoch.subsec_micros()
    )
}

/// Year, month and day of a day counted from 1970-01-01.
fn civil(mut days: u64) -> (u64, u64, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    (year, month as u64 + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// What a log writes, kept.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns what is logged of the same events in this format.
    fn logged(format: LogFormat, colour: bool) -> String {
        let kept = Kept::default();
        let log = Log::new(Level::INFO, format, colour, kept.clone());
        tracing::subscriber::with_default(log, || {
            let absent: Option<u64> = None;
            tracing::info!(name = "a b", count = 3, port = Some("tap"), absent, "ready");
            tracing::warn!(error = %"first\nsecond\x1b[1m", "two\nlines");
            tracing::debug!("not logged");
        });
        String::from_utf8(kept.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_line_of_text_has_no_colours_control_characters_or_absent_fields() {
        let text = logged(LogFormat::Text, false);
        let lines: Vec<&str> = text.lines().map(|line| line.split_once(' ').unwrap().1).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!(lines[0], r#" INFO ready name="a b" count=3 port=tap"#);
        assert_eq!(lines[1], r" WARN two\nlines error=first\nsecond\u{1b}[1m");
    }

    #[test]
    fn colours_are_around_the_level_only() {
        let text = logged(LogFormat::Text, true);
        assert!(text.contains("Z \x1b[32m INFO\x1b[0m ready name"), "{text}");
    }

    #[test]
    fn json_has_numbers_as_numbers_and_text_as_it_is() {
        let text = logged(LogFormat::Json, true);
        let documents: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [ready, warning] = documents.as_slice() else { panic!("{text}") };
        assert_eq!((&ready["level"], &ready["message"]), (&"INFO".into(), &"ready".into()));
        assert_eq!((&ready["name"], &ready["count"]), (&"a b".into(), &3.into()));
        assert!(ready.get("absent").is_none() && ready["timestamp"].is_string(), "{ready}");
        assert_eq!((&warning["level"], &warning["message"]), (&"WARN".into(), &"two\nlines".into()));
        assert_eq!(warning["error"], "first\nsecond\x1b[1m");
    }

    #[test]
    fn lines_that_were_lost_are_counted_before_the_next_one() {
        /// Takes nothing for a while.
        struct Stopped(u32, Kept);
        impl Write for Stopped {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                if self.0 == 0 {
                    return self.1.write(bytes);
                }
                self.0 -= 1;
                Err(io::ErrorKind::WouldBlock.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let kept = Kept::default();
        let log = Log::new(Level::INFO, LogFormat::Text, false, Stopped(2, kept.clone()));
        tracing::subscriber::with_default(log, || {
            for number in 0..4 {
                tracing::info!(number, "line");
            }
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = text.lines().map(|line| line.split_once(' ').unwrap().1.trim()).collect();
        let lost = "WARN lines of this log were lost: its reader had stopped lines=2";
        assert_eq!(lines, [lost, "INFO line number=2", "INFO line number=3"]);
    }

    #[test]
    fn times_are_utc() {
        let at = |seconds| timestamp(Duration::new(seconds, 1_500));
        assert_eq!(at(0), "1970-01-01T00:00:00.000001Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.000001Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000001Z");
        assert_eq!(at(1_782_864_000), "2026-07-01T00:00:00.000001Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000001Z");
    }
}
