//! Finds the functions of an item that loop, and those that poll at their entry because they may
//! call themselves.
//!
//! Names are compared without paths and types: a function counts as recursive if another of the
//! same name is called in a circle. That costs a poll point too many.

use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};
use syn::{Block, Expr, Ident, ImplItemFn, Item, ItemFn, TraitItemFn};

/// Properties of the functions of an item, by name.
#[derive(Default)]
pub struct Functions {
    /// One or more of each circle of calls, without which no function calls itself: those that go
    /// on in the circle from elsewhere than a loop's body.
    pub at_entry: BTreeSet<String>,
    /// Those that have loops, call one that has, or are in a circle. A loop that calls one polls
    /// each time.
    pub looping: BTreeSet<String>,
}

impl Functions {
    /// Examines the functions in `items`.
    pub fn of(items: &[Item]) -> Self {
        let mut graph = Graph::default();
        items.iter().for_each(|item| graph.visit_item(item));
        let cut = graph.cut();
        let at_entry = cut.into_iter().filter(|name| graph.circles_outside_loops(name)).collect();
        Self { at_entry, looping: graph.looping() }
    }
}

#[derive(Default)]
struct Graph {
    /// In the order of the text.
    names: Vec<String>,
    calls: BTreeMap<String, BTreeSet<String>>,
    /// Those of `calls` that are not in the body of a loop.
    outside: BTreeMap<String, BTreeSet<String>>,
    /// Functions with loops of their own.
    loops: BTreeSet<String>,
}

impl Graph {
    fn add(&mut self, name: &Ident, block: &Block) {
        let mut body = Body::default();
        body.visit_block(block);
        let name = name.to_string();
        if body.loops {
            self.loops.insert(name.clone());
        }
        self.outside.entry(name.clone()).or_default().extend(body.outside);
        self.calls.entry(name.clone()).or_default().extend(body.called);
        self.names.push(name);
    }

    /// Returns functions that cut each circle of calls. Of those in a circle one with a loop is
    /// taken first: it is entered less often than what it calls in its loop.
    fn cut(&self) -> BTreeSet<String> {
        let mut cut = BTreeSet::new();
        loop {
            let in_circles = || self.names.iter().filter(|name| self.comes_back(name, &cut));
            let with_loop = in_circles().find(|name| self.loops.contains(*name));
            let Some(next) = with_loop.or_else(|| in_circles().next()).cloned() else { return cut };
            cut.insert(next);
        }
    }

    /// Returns whether a function is called by one that it calls, or by itself, without passing
    /// through one in `cut`.
    fn comes_back(&self, name: &str, cut: &BTreeSet<String>) -> bool {
        if cut.contains(name) {
            return false;
        }
        let (mut seen, mut next) = (BTreeSet::new(), vec![name]);
        while let Some(caller) = next.pop() {
            for called in self.calls.get(caller).into_iter().flatten() {
                if called == name {
                    return true;
                }
                if !cut.contains(called) && seen.insert(called.as_str()) {
                    next.push(called);
                }
            }
        }
        false
    }

    /// Returns whether a function calls one in a circle from elsewhere than the body of a loop.
    fn circles_outside_loops(&self, name: &str) -> bool {
        let none = BTreeSet::new();
        self.outside[name].iter().any(|called| self.comes_back(called, &none))
    }

    fn looping(&self) -> BTreeSet<String> {
        let none = BTreeSet::new();
        let in_circles = self.names.iter().filter(|name| self.comes_back(name, &none));
        let mut looping: BTreeSet<String> = self.loops.iter().chain(in_circles).cloned().collect();
        loop {
            let known = looping.len();
            for (name, called) in &self.calls {
                if !called.is_disjoint(&looping) {
                    looping.insert(name.clone());
                }
            }
            if looping.len() == known {
                return looping;
            }
        }
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

/// What the body of a function holds.
#[derive(Default)]
struct Body {
    /// Names of functions that are called.
    called: BTreeSet<String>,
    /// Those of them that are called elsewhere than in the body of a loop.
    outside: BTreeSet<String>,
    loops: bool,
    in_loop: bool,
}

impl Body {
    fn call(&mut self, name: &Ident) {
        if !self.in_loop {
            self.outside.insert(name.to_string());
        }
        self.called.insert(name.to_string());
    }

    /// Visits the body of a loop, or of a closure, which may run outside the loop that it is in.
    fn visit_part(&mut self, in_loop: bool, part: impl FnOnce(&mut Self)) {
        let before = core::mem::replace(&mut self.in_loop, in_loop);
        part(self);
        self.in_loop = before;
    }

    fn visit_loop(&mut self, head: Option<&Expr>, body: &Block) {
        self.loops = true;
        head.into_iter().for_each(|head| self.visit_expr(head));
        self.visit_part(true, |this| this.visit_block(body));
    }
}

impl<'ast> Visit<'ast> for Body {
    fn visit_expr(&mut self, expression: &'ast Expr) {
        match expression {
            Expr::Call(call) => {
                if let Expr::Path(path) = &*call.func
                    && let Some(segment) = path.path.segments.last()
                {
                    self.call(&segment.ident);
                }
            }
            Expr::MethodCall(call) => self.call(&call.method),
            Expr::ForLoop(inner) => return self.visit_loop(Some(&inner.expr), &inner.body),
            Expr::While(inner) => return self.visit_loop(Some(&inner.cond), &inner.body),
            Expr::Loop(inner) => return self.visit_loop(None, &inner.body),
            Expr::Closure(inner) => return self.visit_part(false, |this| this.visit_expr(&inner.body)),
            Expr::Async(inner) => return self.visit_part(false, |this| this.visit_block(&inner.block)),
            _ => {}
        }
        visit::visit_expr(self, expression);
    }
}
