//! `#[preemptible]`: puts poll points where code comes by again and again.
//!
//! # Where
//! * At each back-edge of a loop whose body calls functions of the same `impl` or module that have
//!   loops of unknown length or call themselves ([`calls`]), or has several such loops itself: a
//!   check of a word.
//! * Other loops take from a count what their bodies are estimated to cost ([`weight`]), one
//!   instruction and a branch, and poll when it is used up. The count is a local variable of the
//!   function, closure or async block, usually in a register, and what is reached then keeps all
//!   general registers (`tailwater`'s `ground::edge`).
//! * A `while` whose body costs next to nothing has it twice: most such loops run once or not at
//!   all, and the first turn does not count.
//! * A `for` whose body costs next to nothing would pay more for the count than for its work. If
//!   its iterator says that little is left, it runs as it is, so that it can be vector code.
//!   Otherwise it runs in chunks, with a poll point before each: ranges and slices are split
//!   beforehand; other iterators count.
//! * A `for` over a range of literals that is over soon has none.
//! * At the entry of a function that the attribute is on, and of one in each circle of functions
//!   that call each other, unless the circle goes on in a loop.
//!
//! # Bound
//! In simple operations, as [`weight`] estimates them, and if no unknown function takes long: what
//! is done between two poll points is at most four times [`weight::FULL`] in the loops of a
//! function, however they nest, and as much again for each call of a function with loops that stand
//! one after the other in a loop's body, since that loop polls each time.
//!
//! Not in `const` functions, constants and the arguments of macros: nothing there can call a
//! function, or be seen.
//!
//! # Meaning is kept
//! A loop keeps its label, and so does its copy. In each the body is in one loop only, so that
//! `break`, `continue`, `return` and `?` mean what they did, also within macros: a chunk that did
//! not run to its end ends the whole loop. Bodies with items, or with macros other than `matches!`,
//! which may hold statics, are not copied. Names of our own are hygienic (mixed site).

mod calls;
mod weight;

#[cfg(test)]
mod tests;

use calls::Functions;
use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Block, Error, Expr, ExprContinue, ExprForLoop, ExprWhile, Ident, ImplItem, Item, ItemImpl, ItemMod,
    Result, Signature, Stmt, TraitItem, parse_quote, parse_quote_spanned,
};
use weight::Weights;

/// A body that costs at most this is written twice.
const TIGHT: u32 = 8;
/// What may be done in a `for` without a poll point.
const SHORT: u32 = 256;

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
            let functions = Functions::of(&[Item::Fn(function.clone())]);
            instrument(&mut function.block, &functions, true);
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
    let functions = Functions::of(items);
    items.iter_mut().for_each(|item| in_item(item, &functions));
}

fn in_impl(item: &mut ItemImpl) {
    let functions = Functions::of(&[Item::Impl(item.clone())]);
    in_methods(item, &functions);
}

fn in_methods(item: &mut ItemImpl, functions: &Functions) {
    for item in &mut item.items {
        if let ImplItem::Fn(method) = item {
            in_function(&method.sig, &mut method.block, functions);
        }
    }
}

/// Instruments the functions of an item.
fn in_item(item: &mut Item, functions: &Functions) {
    match item {
        Item::Fn(function) => in_function(&function.sig, &mut function.block, functions),
        Item::Impl(item) => in_methods(item, functions),
        Item::Mod(module) => in_module(module),
        Item::Trait(item) => {
            for item in &mut item.items {
                if let TraitItem::Fn(method) = item
                    && let Some(block) = &mut method.default
                {
                    in_function(&method.sig, block, functions);
                }
            }
        }
        _ => {}
    }
}

fn in_function(signature: &Signature, block: &mut Block, functions: &Functions) {
    if signature.constness.is_none() {
        let at_entry = functions.at_entry.contains(&signature.ident.to_string());
        instrument(block, functions, at_entry);
    }
}

/// Instruments the body of a function, which begins with a poll point if `at_entry`.
fn instrument(block: &mut Block, functions: &Functions, at_entry: bool) {
    let mut loops = Loops::new(Weights { looping: &functions.looping });
    loops.visit_block_mut(block);
    let count = loops.declaration();
    let entry: Option<Stmt> = at_entry.then(|| parse_quote! { ::tailwater::__preemptible::entry(); });
    block.stmts.splice(0..0, count.into_iter().chain(entry));
}

/// Instruments the loops of one function, closure or async block, which share a count.
struct Loops<'a> {
    count: Ident,
    /// True if a loop counts.
    found: bool,
    weights: Weights<'a>,
}

impl<'a> Loops<'a> {
    fn new(weights: Weights<'a>) -> Self {
        Self { count: Ident::new("__tailwater_left", Span::mixed_site()), found: false, weights }
    }

    /// Returns the statement that declares the count, if it is used.
    fn declaration(&self) -> Option<Stmt> {
        let count = &self.count;
        self.found.then(|| parse_quote! { let mut #count = ::tailwater::__preemptible::FULL; })
    }

    /// Returns a back-edge after what costs `weight`.
    fn back_edge(&mut self, weight: u32) -> Stmt {
        self.found = true;
        let count = &self.count;
        parse_quote! { ::tailwater::__preemptible::back_edge::<#weight>(&mut #count); }
    }

    /// Puts a poll point, or the count of one, at the beginning of a loop's body.
    fn poll_in(&mut self, body: &mut Block, weight: u32) {
        let first = if weight >= weight::LOOPING {
            parse_quote! { ::tailwater::__preemptible::entry(); }
        } else {
            self.back_edge(weight)
        };
        body.stmts.insert(0, first);
    }

    /// Instruments a `while` whose parts are instrumented.
    fn in_while(&mut self, expression: &mut ExprWhile, weight: u32) {
        let ExprWhile { cond, body, .. } = expression;
        // A `continue` in the first copy would lead to that copy again, without a count.
        if weight > TIGHT || continues(body) {
            return self.poll_in(body, weight);
        }
        let back_edge = self.back_edge(weight);
        *body = parse_quote! { {
            #body
            #[allow(unreachable_code)]
            {
                while #cond {
                    #back_edge
                    #body
                }
                break;
            }
        } };
    }

    /// Instruments a `for` whose parts are instrumented.
    fn in_for(&mut self, expression: &mut ExprForLoop, weight: u32, trips: Option<u32>) -> Option<Expr> {
        if trips.is_some_and(|trips| trips.saturating_mul(weight) <= SHORT) {
            return None;
        }
        if weight > TIGHT {
            self.poll_in(&mut expression.body, weight);
            return None;
        }
        Some(in_chunks(expression, weight))
    }
}

/// Returns whether a body has a `continue`, of whichever loop.
fn continues(body: &Block) -> bool {
    struct Found(bool);
    impl<'ast> Visit<'ast> for Found {
        fn visit_expr_continue(&mut self, _: &'ast ExprContinue) {
            self.0 = true;
        }
    }
    let mut found = Found(false);
    found.visit_block(body);
    found.0
}

/// Returns a `for` that runs as it is if little is left, and otherwise in chunks, with a poll point
/// before each.
fn in_chunks(expression: &ExprForLoop, weight: u32) -> Expr {
    let ExprForLoop { attrs, label, pat, expr, body, .. } = expression;
    let (short, chunk) = ((SHORT / weight) as usize, weight::FULL / weight);
    let site = Span::mixed_site();
    let name = |name| Ident::new(name, site);
    let (all, chunks) = (name("__tailwater_all"), name("__tailwater_chunks"));
    let (part, whole) = (name("__tailwater_part"), name("__tailwater_whole"));
    let iterator = quote_spanned! { expr.span() => ::core::iter::IntoIterator::into_iter(#expr) };
    // The temporaries of the iterated expression, such as the guard of a lock, last until the
    // semicolon: as long as the loop, as those of a `for`. In a block of its own, within the
    // `match`, they would end with that block.
    parse_quote_spanned! { site =>
        #(#attrs)*
        {
            #[allow(unused_imports)]
            use ::tailwater::__preemptible::AnyChunks as _;
            match #iterator {
                #all if ::tailwater::__preemptible::is_short(&#all, #short) => {
                    #label for #pat in #all #body
                }
                #all => match ::tailwater::__preemptible::Loop(#all).chunks() {
                    mut #chunks => loop {
                        ::tailwater::__preemptible::edge();
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
                    },
                },
            };
        }
    }
}

impl VisitMut for Loops<'_> {
    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        match expression {
            Expr::ForLoop(inner) => {
                // Before poll points are in it.
                let (weight, trips) = (self.weights.of_block(&inner.body), weight::trips(&inner.expr));
                visit_mut::visit_expr_for_loop_mut(self, inner);
                if let Some(chunks) = self.in_for(inner, weight, trips) {
                    *expression = chunks;
                }
            }
            Expr::While(inner) => {
                let weight = self.weights.of_while(&inner.cond, &inner.body);
                visit_mut::visit_expr_while_mut(self, inner);
                self.in_while(inner, weight);
            }
            Expr::Loop(inner) => {
                let weight = self.weights.of_block(&inner.body);
                visit_mut::visit_expr_loop_mut(self, inner);
                self.poll_in(&mut inner.body, weight);
            }
            Expr::Closure(closure) => {
                let mut own = Self::new(self.weights);
                own.visit_expr_mut(&mut closure.body);
                if let Some(count) = own.declaration() {
                    let body = &closure.body;
                    closure.body = parse_quote! { { #count #body } };
                }
            }
            Expr::Async(inner) => {
                let mut own = Self::new(self.weights);
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
        let functions = Functions::of(core::slice::from_ref(item));
        in_item(item, &functions);
    }

    // Types, patterns and generic arguments hold constants only.
    fn visit_type_mut(&mut self, _: &mut syn::Type) {}
    fn visit_pat_mut(&mut self, _: &mut syn::Pat) {}
    fn visit_generic_argument_mut(&mut self, _: &mut syn::GenericArgument) {}
}
