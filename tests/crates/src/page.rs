//! The table of the page "Which crates work" of the book.
//!
//! Owns what the page says of each crate, and the checks that show it. A row's verdict has to be
//! how its checks end, each check belongs to a row, and the page has the table word for word:
//! [`check`] says what does not fit. `crates --page` prints the table.

use crate::{CHECKS, End};

const PAGE: &str = include_str!("../../../docs/src/guide/crates.md");

/// What becomes of a user thread that uses a crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Works,
    WorksBeside,
    PanicsWithoutTokio,
    HoldsTheCore,
}

impl Verdict {
    fn in_words(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::WorksBeside => "works beside",
            Self::PanicsWithoutTokio => "panics at once without Tokio's runtime",
            Self::HoldsTheCore => "holds the core while it waits",
        }
    }

    /// Returns how the checks of such a row end.
    fn end(self) -> End {
        match self {
            Self::Works | Self::WorksBeside | Self::PanicsWithoutTokio => End::Returns,
            Self::HoldsTheCore => End::ReturnsByDetector,
        }
    }
}

/// The crates of a row, the verdict, how to use them, and the names of the checks.
type Row = (&'static str, Verdict, &'static str, &'static [&'static str]);

const ROWS: &[Row] = &[
    ("`serde`, `serde_json`", Verdict::Works, "nothing to do", &["serde"]),
    (
        "`rand`",
        Verdict::Works,
        "`rand::rng()` is a thread-local: each user thread seeds its own by a system call at the first use. Where \
         threads are short, keep a generator per connection or worker",
        &["rand"],
    ),
    (
        "`tracing`, `tracing-subscriber`",
        Verdict::Works,
        "spans belong to the user thread that entered them and follow it. A writer to a file or terminal is a system \
         call per event: use `tracing_appender::non_blocking`. [`tailwater-tracing`](debugging.md#tracing) adds the \
         names of user threads",
        &["tracing"],
    ),
    (
        "`rusqlite`",
        Verdict::Works,
        "a database in memory behind `tailwater::sync::Mutex`; a database in a file within `tailwater::blocking`",
        &["rusqlite", "rusqlite-blocking"],
    ),
    (
        "`rustls`",
        Verdict::Works,
        "`rustls::StreamOwned` over `tailwater::net::TcpStream`, which is `Read` and `Write`",
        &["rustls"],
    ),
    (
        "`rayon`",
        Verdict::WorksBeside,
        "call `pool.install` and parallel iterators within `tailwater::blocking`, and build the pool there",
        &["rayon"],
    ),
    (
        "`tokio`",
        Verdict::WorksBeside,
        "its runtime on threads of its own; a user thread waits for a future by `tailwater::blocking(\\|\\| \
         runtime.block_on(future))`; a task sends to user threads by `tailwater::sync::mpsc`",
        &["tokio"],
    ),
    (
        "`tokio::io`, `tokio::sync`",
        Verdict::Works,
        "with the feature `tokio-io`, on [Tailwater's sockets](async.md); its channels between tasks of \
         `tailwater::future`",
        &["tokio-io"],
    ),
    (
        "`tokio::time`, `tokio::net`, `tokio::spawn`",
        Verdict::PanicsWithoutTokio,
        "`tailwater::future` has the same names, as the panic says; or enter a runtime's context: [its timers work \
         then](async.md#crates-that-need-tokios-runtime)",
        &["tokio-time"],
    ),
    (
        "`futures`",
        Verdict::Works,
        "`select!`, `FuturesUnordered` and the rest over Tailwater's futures; reading and writing with the feature \
         `futures-io`",
        &["futures"],
    ),
    (
        "`hyper` 1, HTTP/1 and HTTP/2, server and client",
        Verdict::Works,
        "with the feature `hyper`",
        &["hyper-http1", "hyper-http2"],
    ),
    (
        "`hyper-util`'s pool of connections",
        Verdict::Works,
        "with a connector of one's own, for its own needs Tokio's sockets",
        &["client-pool"],
    ),
    (
        "`axum`",
        Verdict::Works,
        "without its feature `tokio`, behind hyper's server instead of `axum::serve`",
        &["axum"],
    ),
    ("`tower`", Verdict::Works, "its `timeout` needs Tokio's runtime and panics at once without", &["tower"]),
    ("`tokio-rustls`", Verdict::Works, "with the feature `tokio-io`", &["tokio-rustls"]),
    (
        "`tonic`",
        Verdict::Works,
        "without its features `transport` and `channel`: services as `tonic::service::Routes` behind hyper's HTTP/2 \
         server, clients over hyper's `SendRequest`; with the feature `hyper`",
        &["tonic"],
    ),
    (
        "`redis`, asynchronous",
        Verdict::Works,
        "`MultiplexedConnection::new_with_config` on Tailwater's stream, with no `response_timeout`, and its driver \
         as a task; with the feature `tokio-io`",
        &["redis"],
    ),
    (
        "`reqwest`, `sqlx`",
        Verdict::WorksBeside,
        "on Tokio's runtime and Linux's network, as `tokio` above",
        &["reqwest", "sqlx"],
    ),
    ("`ureq`", Verdict::WorksBeside, "within `tailwater::blocking`, on Linux's network", &["ureq"]),
    (
        "`std::sync::Mutex`, `RwLock`, `Condvar`, `Once`, `Barrier`",
        Verdict::HoldsTheCore,
        "`tailwater::sync` has the same names. A `std` lock is fine where it is never contended, or where its holder \
         neither switches nor can be preempted",
        &["std-mutex"],
    ),
    ("`parking_lot`", Verdict::HoldsTheCore, "the same", &["parking-lot"]),
    (
        "`std::sync::mpsc`, `crossbeam-channel`",
        Verdict::HoldsTheCore,
        "`tailwater::sync::mpsc`, `tailwater::sync::channel`",
        &["std-channel"],
    ),
    (
        "`std::net`",
        Verdict::HoldsTheCore,
        "`tailwater::net`; Linux's own network within `tailwater::blocking`",
        &["std-net"],
    ),
    (
        "`std::thread::sleep`, `park`",
        Verdict::HoldsTheCore,
        "`tailwater::time`, `tailwater::thread`",
        &["std-park"],
    ),
];

/// Returns the table in Markdown.
pub fn table() -> String {
    let mut table = "| crate | on user threads | how |\n|---|---|---|\n".to_owned();
    for (crates, verdict, how, _) in ROWS {
        table += &format!("| {crates} | {} | {how} |\n", verdict.in_words());
    }
    table
}

/// Checks that rows, checks and the page are as the module header says.
///
/// # Errors
/// What is not.
pub fn check() -> Result<(), String> {
    for (crates, verdict, _, names) in ROWS {
        for name in *names {
            match CHECKS.iter().find(|(known, ..)| known == name) {
                None => {
                    return Err(format!("the row of {crates} names the check `{name}`, which is not there"));
                }
                Some((_, _, end)) if *end != verdict.end() => {
                    return Err(format!(
                        "the check `{name}` ends by {end:?}; the row of {crates}: {verdict:?}"
                    ));
                }
                Some(_) => {}
            }
        }
    }
    let in_row = |name: &str| ROWS.iter().any(|(.., names)| names.contains(&name));
    if let Some((name, ..)) = CHECKS.iter().find(|(name, ..)| !in_row(name)) {
        return Err(format!("no row of the page names the check `{name}`"));
    }
    if !PAGE.contains(&table()) {
        return Err("docs/src/guide/crates.md has another table than `crates --page` prints".to_owned());
    }
    Ok(())
}
