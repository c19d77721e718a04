//! Which functions of an item may call themselves, by name.
//!
//! Names are compared without paths and types: a function counts as recursive if another of the
//! same name is called in a circle. That costs a poll point too many.

use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};
use syn::{Block, Expr, Ident, ImplItemFn, Item, ItemFn, TraitItemFn};

/// Returns the functions in `items` that call themselves, or each other in a circle.
pub fn recursive(items: &[Item]) -> Vec<Ident> {
    let mut graph = Graph::default();
    items.iter().for_each(|item| graph.visit_item(item));
    let names = graph.names.iter().filter(|name| graph.comes_back(&name.to_string()));
    names.cloned().collect()
}

#[derive(Default)]
struct Graph {
    names: Vec<Ident>,
    calls: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    fn add(&mut self, name: &Ident, block: &Block) {
        let mut called = Called::default();
        called.visit_block(block);
        self.names.push(name.clone());
        self.calls.entry(name.to_string()).or_default().extend(called.0);
    }

    /// Returns whether a function is called by one that it calls, or by itself.
    fn comes_back(&self, name: &str) -> bool {
        let (mut seen, mut next) = (BTreeSet::new(), vec![name]);
        while let Some(caller) = next.pop() {
            for called in self.calls.get(caller).into_iter().flatten() {
                if called == name {
                    return true;
                }
                if seen.insert(called.as_str()) {
                    next.push(called);
                }
            }
        }
        false
    }
}

impl<'ast> Visit<'ast> for Graph {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.add(&function.sig.ident, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, method: &'ast ImplItemFn) {
        self.add(&method.sig.ident, &method.block);
        visit::visit_impl_item_fn(self, method);
    }

    fn visit_trait_item_fn(&mut self, method: &'ast TraitItemFn) {
        if let Some(block) = &method.default {
            self.add(&method.sig.ident, block);
        }
        visit::visit_trait_item_fn(self, method);
    }
}

/// The names of functions that are called.
#[derive(Default)]
struct Called(BTreeSet<String>);

impl<'ast> Visit<'ast> for Called {
    fn visit_expr(&mut self, expression: &'ast Expr) {
        match expression {
            Expr::Call(call) => {
                if let Expr::Path(path) = &*call.func
                    && let Some(segment) = path.path.segments.last()
                {
                    self.0.insert(segment.ident.to_string());
                }
            }
            Expr::MethodCall(call) => {
                self.0.insert(call.method.to_string());
            }
            _ => {}
        }
        visit::visit_expr(self, expression);
    }
}
