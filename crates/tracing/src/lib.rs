//! Names of user threads in the output of `tracing_subscriber`.
//!
//! The `with_thread_names` of `tracing_subscriber` prints `std`'s name of the thread, and `std`
//! cannot name a thread that it did not start. But events are formatted on the thread they come
//! from, and there [`tailwater::thread::current`] has the name. Owns one event format, which wraps
//! another; never reads events.
#![forbid(unsafe_code)]

use core::fmt;
use tailwater::thread;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// An event format that puts the thread before what another format prints; see
/// [`with_thread_names`].
///
/// # Examples
/// ```
/// use tailwater_tracing::{ThreadNames, with_thread_names};
/// use tracing_subscriber::fmt::format::{Compact, Format};
///
/// let compact = tracing_subscriber::fmt::format().compact();
/// let format: ThreadNames<Format<Compact>> = with_thread_names(compact);
/// tracing_subscriber::fmt().event_format(format).init();
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadNames<F>(F);

/// Puts the name of the thread, user thread or ordinary one, before the output of `format`; the id,
/// as in `ThreadId(7)`, if it has none.
///
/// For text formats. A JSON line would no longer be valid JSON: put the name into a span there.
///
/// # Examples
/// ```
/// use tailwater::thread;
/// use tailwater_tracing::with_thread_names;
///
/// #[tailwater::main]
/// fn main() {
///     tracing_subscriber::fmt().event_format(with_thread_names(tracing_subscriber::fmt::format())).init();
///
///     // parser 2026-01-01T00:00:00.000000Z  INFO service: ready
///     let parser = thread::Builder::new().name("parser".to_owned());
///     let parser = parser.spawn(|| tracing::info!("ready"));
///     parser.unwrap().join().unwrap();
/// }
/// ```
pub fn with_thread_names<F>(format: F) -> ThreadNames<F> {
    ThreadNames(format)
}

impl<S, N, F> FormatEvent<S, N> for ThreadNames<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let thread = thread::current();
        match thread.name() {
            Some(name) => write!(writer, "{name} ")?,
            None => write!(writer, "{:?} ", thread.id())?,
        }
        self.0.format_event(context, writer, event)
    }
}
