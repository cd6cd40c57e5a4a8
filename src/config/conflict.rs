//! Rules that claim the same request with the same right.

use super::{
    mistake::{Mistake, Span},
    model::{HostPattern, Matcher, PathPattern},
    reader::Context,
};

/// A rule and where it stands in the file.
pub(super) struct Claim<T> {
    pub(super) span: Span,
    pub(super) rule: T,
}

/// Two equal host patterns, in one channel or in two.
pub(super) fn hosts(cx: &Context<'_>, claims: &[Claim<HostPattern>]) {
    for (at, later) in claims.iter().enumerate() {
        if let Some(first) = claims[..at].iter().find(|first| first.rule == later.rule) {
            let message = format!("the host `{}` is claimed twice", later.rule);
            let hint = "a host belongs to one channel; a port or a more specific name tells two apart";
            cx.mistake(Mistake::new(&later.span, message, hint).with(&first.span, "first claimed here"));
        }
    }
}

/// Two endpoints of a channel, equally specific, that one request could match.
pub(super) fn endpoints(cx: &Context<'_>, claims: &[Claim<Matcher>]) {
    for (at, later) in claims.iter().enumerate() {
        if let Some(first) = claims[..at].iter().find(|first| are_ambiguous(&first.rule, &later.rule)) {
            let message = format!("`{}` and `{}` claim the same requests", first.rule.path, later.rule.path);
            let hint = "neither is more specific: tell them apart by path or `method`, or make them one endpoint";
            cx.mistake(Mistake::new(&later.span, message, hint).with(&first.span, "first claimed here"));
        }
    }
}

fn are_ambiguous(a: &Matcher, b: &Matcher) -> bool {
    let methods_meet = match (&a.methods, &b.methods) {
        (None, None) => true,
        (Some(a), Some(b)) => a.iter().any(|method| b.contains(method)),
        _ => false,
    };
    methods_meet && a.path.specificity() == b.path.specificity() && paths_meet(&a.path, &b.path)
}

/// Whether some path matches both, given that they are of one kind.
fn paths_meet(a: &PathPattern, b: &PathPattern) -> bool {
    match (a, b) {
        (PathPattern::Template(a), PathPattern::Template(b)) => {
            let (a, b): (Vec<_>, Vec<_>) = (a.split('/').collect(), b.split('/').collect());
            a.len() == b.len()
                && a.iter().zip(&b).all(|(a, b)| match (a.starts_with('{'), b.starts_with('{')) {
                    (false, false) => a == b,
                    (true, true) => true,
                    // A name matches no empty segment, which a trailing slash leaves.
                    (true, false) => !b.is_empty(),
                    (false, true) => !a.is_empty(),
                })
        }
        _ => a == b,
    }
}
