//! `tracing` spans: a subscriber that checks each event's span, and its parent, against the event's
//! own fields.

use std::sync::atomic::{AtomicU64, Ordering};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

static EVENTS: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);

/// The `id` field of a span or event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SessionId(u64);

impl Visit for SessionId {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "id" {
            self.0 = value;
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

struct Checks;

impl<S: Subscriber + for<'a> LookupSpan<'a>> tracing_subscriber::Layer<S> for Checks {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut session = SessionId(u64::MAX);
        attributes.record(&mut session);
        context.span(id).expect("a new span is known").extensions_mut().insert(session);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut session = SessionId(u64::MAX);
        event.record(&mut session);
        let ids = context.event_scope(event).into_iter().flatten().map(|s| s.extensions().get().copied());
        if ids.collect::<Vec<_>>() != [Some(session), Some(session)] {
            WRONG.fetch_add(1, Ordering::Relaxed);
        }
        EVENTS.fetch_add(1, Ordering::Relaxed);
    }
}

pub fn install() {
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Checks)).unwrap();
}

/// Emits an event in two spans of session `id`, each entered over a computation.
pub fn check(id: u64, compute: impl Fn()) {
    let outer = tracing::info_span!("outer", id);
    let _outer = outer.enter();
    compute();
    tracing::info_span!("inner", id).in_scope(|| {
        compute();
        tracing::info!(id, "computed");
    });
    compute();
    assert_eq!(tracing::Span::current().id(), outer.id(), "another thread's span is current");
}

pub fn totals() -> (u64, u64) {
    (EVENTS.load(Ordering::Relaxed), WRONG.load(Ordering::Relaxed))
}
