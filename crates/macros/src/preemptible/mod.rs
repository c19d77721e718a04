//! `#[preemptible]`: puts poll points where code comes by again and again.
//!
//! # Where
//! * At the back-edges of `while`, `loop` and `for`. Each function, closure and async block that
//!   has any counts them in one local variable and polls when the count is used up. Each back-edge
//!   takes from it what its body is estimated to cost ([`weight`]): a poll point is reached every
//!   half microsecond or so. The count costs little where a body takes tens of nanoseconds. Where a
//!   body takes a few, the loop can take half as long again and more: see `bench dispatch`.
//! * A `for` whose body costs next to nothing would pay more for the count than for its work. It
//!   runs in chunks, with a poll point after each: ranges and slices are split beforehand; other
//!   iterators count, unless no more is left than a part.
//! * A `for` over a range of literals that is over soon has none.
//! * At the entry of a function that the attribute is on, and of one within an `impl` or module
//!   that has loops that count or may call itself ([`calls`]). One whose loops all run in chunks
//!   has no poll point for its first chunk: it may be as small as a dot product.
//!
//! Not in `const` functions, constants and the arguments of macros: nothing there can call a
//! function, or be seen.
//!
//! # Meaning is kept
//! A loop keeps its label, and the body is in one loop only, so that `break`, `continue`, `return`
//! and `?` mean what they did, also within macros: a chunk that did not run to its end ends the
//! whole loop. Names of our own are hygienic (mixed site).

mod calls;
mod weight;

#[cfg(test)]
mod tests;

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Block, Error, Expr, ExprForLoop, Ident, ImplItem, Item, ItemImpl, ItemMod, Result, Signature, Stmt,
    TraitItem, parse_quote, parse_quote_spanned,
};

/// A body that costs at most this is worth a loop in chunks.
const TIGHT: u32 = 8;

/// Expands `#[preemptible]`.
pub fn preemptible(arguments: &TokenStream, item: TokenStream) -> Result<TokenStream> {
    if !arguments.is_empty() {
        return Err(Error::new(arguments.span(), "#[tailwater::preemptible] takes no arguments"));
    }
    let mut item: Item = syn::parse2(item)?;
    match &mut item {
        Item::Fn(function) => {
            if function.sig.constness.is_some() {
                let message = "a const function cannot poll: put #[tailwater::preemptible] on its callers";
                return Err(Error::new(function.sig.span(), message));
            }
            instrument(&mut function.block, |_| true);
        }
        Item::Impl(item) => in_impl(item),
        Item::Mod(item) if item.content.is_some() => in_module(item),
        other => {
            let message = "#[tailwater::preemptible] belongs on a function, an impl or a module with a body";
            return Err(Error::new(other.span(), message));
        }
    }
    Ok(quote! { #item })
}

fn in_module(module: &mut ItemMod) {
    let Some((_, items)) = &mut module.content else { return };
    let recursive = calls::recursive(items);
    items.iter_mut().for_each(|item| in_item(item, &recursive));
}

fn in_impl(item: &mut ItemImpl) {
    let recursive = calls::recursive(&[Item::Impl(item.clone())]);
    in_methods(item, &recursive);
}

fn in_methods(item: &mut ItemImpl, recursive: &[Ident]) {
    for item in &mut item.items {
        if let ImplItem::Fn(method) = item {
            in_function(&method.sig, &mut method.block, recursive);
        }
    }
}

/// Instruments the functions of an item, of which those in `recursive` may call themselves.
fn in_item(item: &mut Item, recursive: &[Ident]) {
    match item {
        Item::Fn(function) => in_function(&function.sig, &mut function.block, recursive),
        Item::Impl(item) => in_methods(item, recursive),
        Item::Mod(module) => in_module(module),
        Item::Trait(item) => {
            for item in &mut item.items {
                if let TraitItem::Fn(method) = item
                    && let Some(block) = &mut method.default
                {
                    in_function(&method.sig, block, recursive);
                }
            }
        }
        _ => {}
    }
}

fn in_function(signature: &Signature, block: &mut Block, recursive: &[Ident]) {
    if signature.constness.is_none() {
        instrument(block, |counts| counts || recursive.contains(&signature.ident));
    }
}

/// Instruments the body of a function; `at_entry` decides whether it begins with a poll point, by
/// whether it has loops that count.
fn instrument(block: &mut Block, at_entry: impl FnOnce(bool) -> bool) {
    let mut loops = Loops::new();
    loops.visit_block_mut(block);
    let count = loops.declaration();
    let entry: Option<Stmt> = at_entry(loops.found).then(|| parse_quote! { ::tailwater::poll(); });
    block.stmts.splice(0..0, count.into_iter().chain(entry));
}

/// Instruments the loops of one function, closure or async block, which share a count.
struct Loops {
    count: Ident,
    /// True if a loop counts.
    found: bool,
}

impl Loops {
    fn new() -> Self {
        Self { count: Ident::new("__tailwater_left", Span::mixed_site()), found: false }
    }

    /// Returns the statement that declares the count, if it is used.
    fn declaration(&self) -> Option<Stmt> {
        let count = &self.count;
        self.found.then(|| parse_quote! { let mut #count = ::tailwater::__preemptible::FULL; })
    }

    /// Puts a back-edge at the beginning of a loop's body.
    fn count_body(&mut self, body: &mut Block) {
        self.found = true;
        let (count, weight) = (&self.count, weight::of_block(body));
        let back_edge: Stmt = parse_quote! { ::tailwater::__preemptible::back_edge::<#weight>(&mut #count); };
        body.stmts.insert(0, back_edge);
    }

    /// Instruments a `for` whose parts are instrumented.
    fn in_for(&mut self, expression: &mut ExprForLoop, weight: u32, trips: Option<u32>) -> Option<Expr> {
        if trips.is_some_and(|trips| trips.saturating_mul(weight) <= weight::FULL) {
            return None;
        }
        if weight > TIGHT {
            self.count_body(&mut expression.body);
            return None;
        }
        Some(in_chunks(expression, weight::FULL / weight))
    }
}

/// Returns a `for` that runs `chunk` iterations at a time, with a poll point after each.
fn in_chunks(expression: &ExprForLoop, chunk: u32) -> Expr {
    let ExprForLoop { attrs, label, pat, expr, body, .. } = expression;
    let site = Span::mixed_site();
    let (chunks, part, whole) = (
        Ident::new("__tailwater_chunks", site),
        Ident::new("__tailwater_part", site),
        Ident::new("__tailwater_whole", site),
    );
    let iterator = quote_spanned! { expr.span() => ::core::iter::IntoIterator::into_iter(#expr) };
    // The temporaries of the iterated expression, such as the guard of a lock, last until the
    // semicolon: as long as the loop, as those of a `for`. In a block of its own, within the
    // `match`, they would end with that block.
    parse_quote_spanned! { site =>
        #(#attrs)*
        {
            #[allow(unused_imports)]
            use ::tailwater::__preemptible::AnyChunks as _;
            match ::tailwater::__preemptible::Loop(#iterator).chunks() {
                mut #chunks => loop {
                    let mut #whole = false;
                    let mut #part = ::tailwater::__preemptible::Chunks::next_part(&mut #chunks, #chunk);
                    #label loop {
                        match ::core::iter::Iterator::next(&mut #part) {
                            ::core::option::Option::Some(#pat) => #body,
                            ::core::option::Option::None => {
                                #whole = true;
                                break;
                            }
                        }
                    }
                    if !#whole || ::tailwater::__preemptible::Chunks::is_done(&#chunks) {
                        break;
                    }
                    ::tailwater::poll();
                },
            };
        }
    }
}

impl VisitMut for Loops {
    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        match expression {
            Expr::ForLoop(inner) => {
                // Before poll points are in it.
                let (weight, trips) = (weight::of_block(&inner.body), weight::trips(&inner.expr));
                visit_mut::visit_expr_for_loop_mut(self, inner);
                if let Some(chunks) = self.in_for(inner, weight, trips) {
                    *expression = chunks;
                }
            }
            Expr::While(inner) => {
                visit_mut::visit_expr_while_mut(self, inner);
                self.count_body(&mut inner.body);
            }
            Expr::Loop(inner) => {
                visit_mut::visit_expr_loop_mut(self, inner);
                self.count_body(&mut inner.body);
            }
            Expr::Closure(closure) => {
                let mut own = Self::new();
                own.visit_expr_mut(&mut closure.body);
                if let Some(count) = own.declaration() {
                    let body = &closure.body;
                    closure.body = parse_quote! { { #count #body } };
                }
            }
            Expr::Async(inner) => {
                let mut own = Self::new();
                own.visit_block_mut(&mut inner.block);
                inner.block.stmts.splice(0..0, own.declaration());
            }
            // Evaluated by the compiler.
            Expr::Const(_) => {}
            Expr::Repeat(inner) => self.visit_expr_mut(&mut inner.expr),
            other => visit_mut::visit_expr_mut(self, other),
        }
    }

    fn visit_item_mut(&mut self, item: &mut Item) {
        let recursive = calls::recursive(core::slice::from_ref(item));
        in_item(item, &recursive);
    }

    // Types, patterns and generic arguments hold constants only.
    fn visit_type_mut(&mut self, _: &mut syn::Type) {}
    fn visit_pat_mut(&mut self, _: &mut syn::Pat) {}
    fn visit_generic_argument_mut(&mut self, _: &mut syn::GenericArgument) {}
}
