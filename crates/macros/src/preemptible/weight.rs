//! Estimates the cost of a loop's body, in simple operations of a fraction of a nanosecond to a
//! nanosecond.
//!
//! A guess from the text, right within a factor of ten: a call may do anything. It decides how
//! often a loop polls, and whether the count would be felt.

use std::collections::BTreeSet;
use syn::visit::{self, Visit};
use syn::{Block, Expr, ExprRange, Ident, Lit, Macro, RangeLimits};

/// What is done between two poll points of a loop that counts, `tailwater::__preemptible::FULL`.
pub const FULL: u32 = 1024;
/// A call of a function that has a loop of unknown length, or calls itself. A body that costs this
/// polls each time.
pub const LOOPING: u32 = 256;
/// A loop of unknown length. A tight `for` may do four times that without a poll point; what others
/// do counts.
const LOOP: u32 = 64;
/// A call of an unknown function.
const CALL: u32 = 16;

/// Methods and functions that cost next to nothing on most types.
const CHEAP: [&str; 40] = [
    "abs",
    "abs_diff",
    "as_bytes",
    "as_mut",
    "as_ref",
    "as_slice",
    "cloned",
    "copied",
    "count_ones",
    "first",
    "from",
    "get",
    "get_mut",
    "into",
    "is_empty",
    "iter",
    "iter_mut",
    "last",
    "leading_zeros",
    "len",
    "load",
    "max",
    "min",
    "mul_add",
    "next",
    "peek",
    "pop",
    "powi",
    "rotate_left",
    "rotate_right",
    "split_first",
    "split_last",
    "sqrt",
    "swap",
    "swap_bytes",
    "take",
    "to_owned",
    "trailing_zeros",
    "unwrap",
    "unwrap_or",
];
/// Beginnings of the names of such methods.
const CHEAP_STARTS: [&str; 5] = ["wrapping_", "overflowing_", "saturating_", "checked_", "is_"];

/// Estimates, in an item whose functions named in `looping` have loops.
#[derive(Clone, Copy)]
pub struct Weights<'a> {
    pub looping: &'a BTreeSet<String>,
}

impl Weights<'_> {
    /// Returns the estimate for a block, at least 1 and at most [`FULL`].
    pub fn of_block(self, block: &Block) -> u32 {
        let mut sum = Sum { weights: self, sum: 1 };
        sum.visit_block(block);
        sum.sum.clamp(1, FULL)
    }

    /// Returns the estimate for an iteration of a `while`, as [`of_block`](Self::of_block).
    pub fn of_while(self, condition: &Expr, body: &Block) -> u32 {
        let mut sum = Sum { weights: self, sum: self.of_block(body) };
        sum.visit_expr(condition);
        sum.sum.clamp(1, FULL)
    }

    fn of_call(self, name: &Ident) -> u32 {
        let name = name.to_string();
        if self.looping.contains(&name) {
            return LOOPING;
        }
        let cheap = CHEAP.contains(&&*name) || CHEAP_STARTS.iter().any(|start| name.starts_with(start));
        if cheap { 0 } else { CALL }
    }
}

/// Returns the number of iterations of a loop over a range of literals.
pub fn trips(iterated: &Expr) -> Option<u32> {
    let range = match iterated {
        Expr::Paren(inner) => return trips(&inner.expr),
        Expr::Range(range) => range,
        _ => return None,
    };
    let ExprRange { start: Some(start), end: Some(end), limits, .. } = range else { return None };
    let trips = literal(end)?.checked_sub(literal(start)?)?;
    trips.checked_add(u32::from(matches!(limits, RangeLimits::Closed(_))))
}

fn literal(expression: &Expr) -> Option<u32> {
    match expression {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(number) => number.base10_parse().ok(),
            _ => None,
        },
        _ => None,
    }
}

struct Sum<'a> {
    weights: Weights<'a>,
    sum: u32,
}

impl Sum<'_> {
    fn add(&mut self, cost: u32) {
        self.sum = self.sum.saturating_add(cost).min(FULL);
    }
}

impl<'ast> Visit<'ast> for Sum<'_> {
    fn visit_expr(&mut self, expression: &'ast Expr) {
        match expression {
            Expr::ForLoop(inner) => {
                let body = self.weights.of_block(&inner.body);
                self.add(trips(&inner.expr).map_or(LOOP, |trips| trips.saturating_mul(body)));
                return self.visit_expr(&inner.expr);
            }
            Expr::While(_) | Expr::Loop(_) => self.add(LOOP),
            Expr::Call(call) => {
                let name = match &*call.func {
                    Expr::Path(path) => path.path.segments.last().map(|segment| &segment.ident),
                    _ => None,
                };
                // A tuple structure costs nothing: what begins with a capital does not count.
                let constructs = name.is_some_and(|name| name.to_string().starts_with(char::is_uppercase));
                self.add(match name {
                    _ if constructs => 0,
                    Some(name) => self.weights.of_call(name),
                    None => CALL,
                });
            }
            Expr::MethodCall(call) => self.add(self.weights.of_call(&call.method)),
            Expr::Await(_) => self.add(CALL),
            // Runs elsewhere, or is no code.
            Expr::Closure(_) | Expr::Async(_) | Expr::Const(_) => return,
            _ => {}
        }
        visit::visit_expr(self, expression);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.add(if call.path.is_ident("matches") { 1 } else { CALL });
    }

    // Two statics of one name are not one: a body that declares any is not written twice.
    fn visit_item(&mut self, _: &'ast syn::Item) {
        self.add(CALL);
    }
}
