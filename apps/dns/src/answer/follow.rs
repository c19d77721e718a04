//! The way of a question through a zone, and the answer section.
//!
//! Owns RFC 1034, section 4.3.2, step 3, with aliases (CNAME) and redirections of all names below
//! another (DNAME, RFC 6672). It ends after [`MAX_CHAIN`] of them, and at a name that it has seen.

use super::write::{Full, Out, Owner, Set};
use crate::name::FlatName;
use crate::zone::denial::Proofs;
use crate::zone::{Found, MAX_CHAIN, Node, RrSet, Zone};
use domain::base::iana::Rtype;
use domain::base::message_builder::AnswerBuilder;

/// The end of following a question through a zone.
pub enum End<'a> {
    /// These records, which are in the answer.
    Records(&'a RrSet),
    /// Signatures of several sets of a name.
    Signatures,
    /// An alias for a name of another zone, or one that leads back.
    Elsewhere,
    /// A name without records of the type.
    NoData,
    /// A name that does not exist.
    NxDomain,
    /// The redirected name would be too long (RFC 6672, section 2.2).
    TooLong,
    /// A delegation.
    Referral(&'a Node),
}

/// A question on its way.
pub struct Walk<'a, 'q> {
    zone: &'a Zone,
    question: &'q FlatName,
    rtype: Rtype,
    /// What proves the answer, if the client asks for it and the zone is signed.
    pub proofs: Option<Proofs<'a>>,
    /// The target of an alias.
    target: Option<FlatName>,
    /// Hashes of the names passed.
    passed: [u64; MAX_CHAIN],
    /// The nodes of the DNAME records in the answer.
    redirected: [Option<&'a Node>; MAX_CHAIN],
    steps: usize,
}

/// The next step.
enum Next<'a> {
    /// The way ends.
    End(End<'a>),
    /// An alias leads to another name of the zone.
    On,
}

impl<'a, 'q> Walk<'a, 'q> {
    /// Returns the beginning of the way of a question that belongs to `zone`. With `secure`,
    /// signatures are added, and proofs collected.
    pub fn new(zone: &'a Zone, question: &'q FlatName, rtype: Rtype, secure: bool) -> Self {
        let proofs = secure.then(Proofs::default);
        let (passed, redirected) = ([0; MAX_CHAIN], [None; MAX_CHAIN]);
        Self { zone, question, rtype, proofs, target: None, passed, redirected, steps: 0 }
    }

    /// Follows the question to its end and writes the records found on the way.
    pub fn follow(&mut self, answer: &mut AnswerBuilder<Out<'_>>) -> Result<End<'a>, Full> {
        while self.steps < MAX_CHAIN {
            if let Next::End(end) = self.step(answer)? {
                return Ok(end);
            }
        }
        Ok(End::Elsewhere)
    }

    /// Returns the name at which it is.
    fn name(&self) -> &FlatName {
        self.target.as_ref().unwrap_or(self.question)
    }

    fn step(&mut self, answer: &mut AnswerBuilder<Out<'_>>) -> Result<Next<'a>, Full> {
        let zone = self.zone;
        let (node, wildcard) = match zone.find(self.name()) {
            Found::Exact(node) => (node, None),
            Found::Wildcard { node, encloser } => (node, Some(encloser)),
            // The parent side of a delegation is authoritative for its DS records (RFC 4035,
            // section 3.1.4.1).
            Found::Cut { node, exact: true } if self.rtype == Rtype::DS => (node, None),
            Found::Cut { node, .. } => return Ok(Next::End(self.referral(node))),
            Found::Redirected { node, labels } => return self.redirect(node, labels, answer),
            Found::Missing { encloser } => {
                let name = self.target.as_ref().unwrap_or(self.question);
                if let Some(proofs) = &mut self.proofs {
                    zone.prove_no_name(name, encloser, proofs);
                }
                return Ok(Next::End(End::NxDomain));
            }
        };
        let wanted = match self.rtype {
            // One set is enough (RFC 8482, section 4.1).
            Rtype::ANY => node.rrsets().first(),
            Rtype::RRSIG => return self.signatures(node, wildcard, answer),
            rtype => node.rrset(rtype),
        };
        if let Some(rrset) = wanted {
            self.write(rrset, wildcard, answer)?;
            return Ok(Next::End(End::Records(rrset)));
        }
        let Some(alias) = node.rrset(Rtype::CNAME) else {
            return Ok(Next::End(self.no_data(node, wildcard)));
        };
        self.write(alias, wildcard, answer)?;
        let Some(next) = alias.data.first().and_then(|data| data.target()) else {
            return Ok(Next::End(End::NoData));
        };
        let next = FlatName::new(next);
        Ok(self.go_on(next))
    }

    /// Returns the name at which it is as an owner of records.
    fn owner(&self) -> Owner<'_> {
        match &self.target {
            Some(target) => Owner::Name(target.name()),
            // The root is shorter than a pointer to it.
            None if self.question.labels() == 0 => Owner::Name(self.question.name()),
            None => Owner::Question,
        }
    }

    /// Writes records of the name at which it is, with what DNSSEC adds.
    fn write(
        &mut self,
        rrset: &'a RrSet,
        wildcard: Option<usize>,
        answer: &mut AnswerBuilder<Out<'_>>,
    ) -> Result<(), Full> {
        let set = Set { owner: self.owner(), rrset };
        set.push(answer)?;
        if self.proofs.is_some() {
            set.push_signatures(answer)?;
        }
        self.prove(wildcard);
        Ok(())
    }

    /// Adds the proof of records made from a wildcard.
    fn prove(&mut self, wildcard: Option<usize>) {
        let name = self.target.as_ref().unwrap_or(self.question);
        if let (Some(proofs), Some(encloser)) = (&mut self.proofs, wildcard) {
            self.zone.prove_wildcard(name, encloser, proofs);
        }
    }

    fn referral(&mut self, node: &'a Node) -> End<'a> {
        if let Some(proofs) = &mut self.proofs
            && node.rrset(Rtype::DS).is_none()
        {
            self.zone.prove_no_data(&FlatName::new(node.name()), node, proofs);
        }
        End::Referral(node)
    }

    fn no_data(&mut self, node: &'a Node, wildcard: Option<usize>) -> End<'a> {
        let name = self.target.as_ref().unwrap_or(self.question);
        if let Some(proofs) = &mut self.proofs {
            match wildcard {
                None => self.zone.prove_no_data(name, node, proofs),
                Some(encloser) => self.zone.prove_no_data_at_wildcard(name, node, encloser, proofs),
            }
        }
        End::NoData
    }

    /// Writes the signatures of all records of a name, for a question about them.
    fn signatures(
        &mut self,
        node: &'a Node,
        wildcard: Option<usize>,
        answer: &mut AnswerBuilder<Out<'_>>,
    ) -> Result<Next<'a>, Full> {
        let signed = node.rrsets().iter().filter(|rrset| !rrset.signatures.is_empty());
        let before = answer.counts().ancount();
        for rrset in signed {
            Set { owner: self.owner(), rrset }.push_signatures(answer)?;
        }
        if answer.counts().ancount() == before {
            return Ok(Next::End(self.no_data(node, wildcard)));
        }
        self.prove(wildcard);
        Ok(Next::End(End::Signatures))
    }

    /// Answers for a name below one with a DNAME record: that record, and an alias made from it
    /// (RFC 6672, section 3.1).
    fn redirect(
        &mut self,
        node: &'a Node,
        labels: usize,
        answer: &mut AnswerBuilder<Out<'_>>,
    ) -> Result<Next<'a>, Full> {
        let Some(dname) = node.rrset(Rtype::DNAME) else { return Ok(Next::End(End::NoData)) };
        let Some(to) = dname.data.first().and_then(|data| data.redirect()) else {
            return Ok(Next::End(End::NoData));
        };
        let set = Set { owner: Owner::Name(node.name().for_slice()), rrset: dname };
        // Once: a chain may pass the same record several times.
        if !self.redirected.iter().flatten().any(|other| core::ptr::eq(*other, node)) {
            self.redirected[self.steps] = Some(node);
            set.push(answer)?;
            if self.proofs.is_some() {
                set.push_signatures(answer)?;
            }
        }
        let mut next = FlatName::root();
        if !next.set_joined(self.name(), self.name().labels() - labels, to) {
            return Ok(Next::End(End::TooLong));
        }
        self.owner().push_alias(dname.ttl, next.name(), answer)?;
        if self.rtype == Rtype::CNAME {
            return Ok(Next::End(End::Elsewhere));
        }
        Ok(self.go_on(next))
    }

    /// Goes on to the target of an alias, unless it was passed already or is in another zone.
    fn go_on(&mut self, next: FlatName) -> Next<'a> {
        self.passed[self.steps] = self.zone.fingerprint(self.name());
        self.steps += 1;
        let seen = self.zone.fingerprint(&next);
        if self.passed[..self.steps].contains(&seen) || !next.is_within(self.zone.origin()) {
            return Next::End(End::Elsewhere);
        }
        self.target = Some(next);
        Next::On
    }
}
