//! What a loop's body is estimated to cost, in simple operations of a fraction of a nanosecond to a
//! nanosecond.
//!
//! A guess from the text, right within a factor of ten: a call may do anything. It decides how
//! often a loop polls, and whether the count would be felt.

use syn::visit::{self, Visit};
use syn::{Block, Expr, ExprRange, Lit, RangeLimits};

/// What the count of back-edges begins with, `tailwater::__preemptible::FULL`.
pub const FULL: u32 = 512;
/// A call of an unknown function: 16 of them fill the count.
const CALL: u32 = 32;
/// A loop of unknown length.
const LOOP: u32 = 32;

/// Methods of numbers, and others that cost next to nothing on any type.
const CHEAP: [&str; 20] = [
    "abs",
    "abs_diff",
    "as_mut",
    "as_ref",
    "copied",
    "count_ones",
    "get",
    "is_empty",
    "leading_zeros",
    "len",
    "max",
    "min",
    "mul_add",
    "powi",
    "rotate_left",
    "rotate_right",
    "sqrt",
    "swap_bytes",
    "to_owned",
    "trailing_zeros",
];
/// Beginnings of the names of such methods.
const CHEAP_STARTS: [&str; 5] = ["wrapping_", "overflowing_", "saturating_", "checked_", "is_"];

/// Returns the estimate for a block, at least 1 and at most [`FULL`].
pub fn of_block(block: &Block) -> u32 {
    let mut sum = Sum(1);
    sum.visit_block(block);
    sum.0.clamp(1, FULL)
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

struct Sum(u32);

impl Sum {
    fn add(&mut self, cost: u32) {
        self.0 = self.0.saturating_add(cost).min(FULL);
    }
}

impl<'ast> Visit<'ast> for Sum {
    fn visit_expr(&mut self, expression: &'ast Expr) {
        match expression {
            Expr::ForLoop(inner) => {
                let body = of_block(&inner.body);
                self.add(trips(&inner.expr).map_or(LOOP, |trips| trips.saturating_mul(body)));
                return self.visit_expr(&inner.expr);
            }
            Expr::While(_) | Expr::Loop(_) => self.add(LOOP),
            // It may be a tuple structure, which costs nothing; all but calls in capitals count.
            Expr::Call(call) => {
                let constructs = matches!(&*call.func, Expr::Path(path)
                    if path.path.segments.last().is_some_and(|s| s.ident.to_string().starts_with(char::is_uppercase)));
                self.add(if constructs { 0 } else { CALL });
            }
            Expr::MethodCall(call) => {
                let name = call.method.to_string();
                let cheap =
                    CHEAP.contains(&&*name) || CHEAP_STARTS.iter().any(|start| name.starts_with(start));
                self.add(u32::from(!cheap) * CALL);
            }
            Expr::Macro(_) | Expr::Await(_) => self.add(CALL),
            // Runs elsewhere, or is no code.
            Expr::Closure(_) | Expr::Async(_) | Expr::Const(_) => return,
            _ => {}
        }
        visit::visit_expr(self, expression);
    }

    fn visit_stmt_macro(&mut self, _: &'ast syn::StmtMacro) {
        self.add(CALL);
    }

    fn visit_item(&mut self, _: &'ast syn::Item) {}
}
