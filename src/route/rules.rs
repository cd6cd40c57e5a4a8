//! Finds the endpoint of a method and path.

use std::{cmp::Reverse, sync::Arc};

use http::Method;

use crate::config::model::{Endpoint, PathPattern};

/// The rules of a channel, most specific first. A channel has a handful: trying them in order is as fast as any index, and
/// the order is what `explain` shows.
#[derive(Debug)]
pub(super) struct Rules(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    methods: Option<Vec<Method>>,
    path: PathRule,
    /// In the order of the configuration.
    index: usize,
}

#[derive(Debug)]
enum PathRule {
    Exact(String),
    /// `None`: one non-empty segment.
    Template(Vec<Option<String>>),
    /// Ends with `/`.
    Prefix(String),
}

impl Rules {
    pub(super) fn new(endpoints: &[Arc<Endpoint>]) -> Self {
        let mut order: Vec<(usize, &Arc<Endpoint>)> = endpoints.iter().enumerate().collect();
        order.sort_by_key(|(_, endpoint)| {
            Reverse((endpoint.matcher.path.specificity(), endpoint.matcher.methods.is_some()))
        });
        let rule = |(index, endpoint): (usize, &Arc<Endpoint>)| Rule {
            methods: endpoint.matcher.methods.clone(),
            path: PathRule::new(&endpoint.matcher.path),
            index,
        };
        Self(order.into_iter().map(rule).collect())
    }

    /// The index of the endpoint that claims the request; `path` is normalized.
    pub(super) fn find(&self, method: &Method, path: &str) -> Option<usize> {
        self.in_order(method, path).find(|(_, fits)| *fits == Fit::Both).map(|(index, _)| index)
    }

    /// Every endpoint, most specific first, and how the request fits it.
    pub(super) fn in_order(&self, method: &Method, path: &str) -> impl Iterator<Item = (usize, Fit)> {
        self.0.iter().map(move |rule| {
            let fit = if !rule.path.matches(path) {
                Fit::OtherPath
            } else if rule.methods.as_ref().is_some_and(|methods| !methods.contains(method)) {
                Fit::OtherMethod
            } else {
                Fit::Both
            };
            (rule.index, fit)
        })
    }
}

/// How a request fits a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    Both,
    OtherMethod,
    OtherPath,
}

impl PathRule {
    fn new(pattern: &PathPattern) -> Self {
        match pattern {
            PathPattern::Exact(path) => Self::Exact(path.clone()),
            PathPattern::Prefix(prefix) => Self::Prefix(prefix.clone()),
            PathPattern::Template(path) => Self::Template(
                path.split('/')
                    .skip(1)
                    .map(|segment| (!segment.starts_with('{')).then(|| segment.to_owned()))
                    .collect(),
            ),
        }
    }

    fn matches(&self, path: &str) -> bool {
        match self {
            Self::Exact(exact) => path == exact,
            Self::Prefix(prefix) => path.starts_with(prefix.as_str()) || prefix.strip_suffix('/') == Some(path),
            Self::Template(segments) => {
                let mut given = path.split('/').skip(1);
                let fits = segments.iter().all(|segment| match (segment, given.next()) {
                    (Some(literal), Some(given)) => literal == given,
                    (None, Some(given)) => !given.is_empty(),
                    (_, None) => false,
                });
                fits && given.next().is_none()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_matches_one_segment_that_is_not_empty() {
        let rule = PathRule::new(&PathPattern::Template("/a/{b}".to_owned()));
        for (path, matches) in [
            ("/a/x", true),
            ("/a/", false),
            ("/a", false),
            ("/a/x/", false),
            ("/a/x/y", false),
            ("/b/x", false),
            ("*", false),
        ] {
            assert_eq!(rule.matches(path), matches, "{path}");
        }
    }

    proptest! {
        #[test]
        fn no_path_panics(path in "\\PC{0,24}", short in "[/a{}]{0,8}") {
            let patterns = [
                PathPattern::Exact("/a".to_owned()),
                PathPattern::Template("/a/{b}/c".to_owned()),
                PathPattern::Prefix("/".to_owned()),
                PathPattern::Prefix("/a/".to_owned()),
            ];
            for pattern in &patterns {
                let rule = PathRule::new(pattern);
                let _ = (rule.matches(&path), rule.matches(&short));
            }
        }
    }
}
