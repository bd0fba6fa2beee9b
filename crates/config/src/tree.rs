// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From text to a tree that knows its places.
//!
//! The YAML parser's events are read directly (the parser beneath serde-saphyr), because the texts
//! of scalars must stay as they were written until the schema says what they are: `off`, `010` and
//! `1e3` are then no riddles. Anchors, aliases, tags and directives are refused: a configuration
//! needs none, and what is not there cannot explode.

use super::error::{ConfigError, ConfigErrors, Place, quoted};
use super::file::CONFIG_BYTES_MAX;
use serde_saphyr::granit_parser::{Event, Marker, Options, Parser, ScalarStyle};

/// Deepest nesting; the schema needs 6.
const DEPTH_MAX: usize = 32;
/// Most values in one file.
const NODES_MAX: usize = 100_000;

/// A value and its place.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Scalar { text: String, plain: bool },
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A key and its place.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) place: Place,
    pub(super) text: String,
}

impl Node {
    /// What this is, for a message.
    pub(super) fn found(&self) -> String {
        match &self.value {
            Value::Scalar { text, plain: true } if text.is_empty() || text == "~" => {
                "nothing".into()
            }
            Value::Scalar { text, .. } => quoted(text),
            Value::List(_) => "a list".into(),
            Value::Map(_) => "a map".into(),
        }
    }
}

/// Reads a whole text.
pub(super) fn read(text: &str) -> Result<Node, ConfigErrors> {
    if text.len() > CONFIG_BYTES_MAX {
        let message =
            format!("found {} bytes; a configuration has at most {CONFIG_BYTES_MAX}", text.len());
        return Err(ConfigError::new(Place::default(), "", message).into());
    }
    let mut options = Options::default();
    options.emit_comments = false;
    options.disallow_directives = true;
    options.emit_unresolved_aliases = true;
    let events = Parser::new_from_str_with_options(text, options);
    let mut reader = Reader { events, nodes: 0, duplicates: Vec::new() };
    let root = reader.document(text).map_err(ConfigErrors::from)?;
    if reader.duplicates.is_empty() { Ok(root) } else { Err(ConfigErrors::new(reader.duplicates)) }
}

fn place(marker: &Marker) -> Place {
    Place { line: marker.line(), column: marker.col() + 1 }
}

fn fault(at: Place, message: impl Into<String>) -> ConfigError {
    ConfigError::new(at, "", message)
}

struct Reader<'a> {
    events: Parser<'a, serde_saphyr::granit_parser::StrInput<'a>>,
    nodes: usize,
    duplicates: Vec<ConfigError>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Place), ConfigError> {
        match self.events.next() {
            Some(Ok((event, span))) => Ok((event, place(&span.start))),
            Some(Err(e)) => {
                let at = place(e.marker());
                Err(fault(at, format!("this is not YAML: {}", e.info())))
            }
            None => Ok((Event::StreamEnd, Place::default())),
        }
    }

    fn document(&mut self, text: &str) -> Result<Node, ConfigError> {
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => {
                    let kind = if text.trim().is_empty() { "nothing" } else { "only comments" };
                    return Err(fault(
                        Place::default(),
                        format!(
                            "found {kind}; a configuration has at least the key services, and interfaces or gateways"
                        ),
                    ));
                }
                (Event::StreamStart | Event::DocumentStart(..), _) => {}
                (event, at) => {
                    let root = self.node(event, at, 0)?;
                    self.end()?;
                    return Ok(root);
                }
            }
        }
    }

    /// After the document nothing may follow.
    fn end(&mut self) -> Result<(), ConfigError> {
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(()),
                (Event::DocumentStart(..), at) => {
                    return Err(fault(at, "found a second document; a file holds one"));
                }
                _ => {}
            }
        }
    }

    fn node(&mut self, event: Event<'a>, at: Place, depth: usize) -> Result<Node, ConfigError> {
        self.nodes += 1;
        if depth > DEPTH_MAX || self.nodes > NODES_MAX {
            let bound = if depth > DEPTH_MAX {
                format!("nested deeper than {DEPTH_MAX}")
            } else {
                format!("more than {NODES_MAX} values")
            };
            return Err(fault(at, format!("{bound}: this is no configuration of tidegate")));
        }
        refuse_properties(&event, at)?;
        let value = match event {
            Event::Scalar(text, style, ..) => {
                let plain = style == ScalarStyle::Plain;
                Value::Scalar { text: text.into_owned(), plain }
            }
            Event::SequenceStart(..) => self.list(depth)?,
            Event::MappingStart(..) => self.map(depth)?,
            _ => return Err(fault(at, "found something that is no value")),
        };
        Ok(Node { place: at, value })
    }

    fn list(&mut self, depth: usize) -> Result<Value, ConfigError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                (event, at) => items.push(self.node(event, at, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, ConfigError> {
        let mut entries: Vec<(Key, Node)> = Vec::new();
        let mut seen = std::collections::BTreeMap::new();
        loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                return Ok(Value::Map(entries));
            }
            let Value::Scalar { text, .. } = self.node(event, at, depth + 1)?.value else {
                return Err(fault(at, "found a list or a map as a key; a key is a word"));
            };
            if let Some(first) = seen.insert(text.clone(), at) {
                let message =
                    format!("the key {} was given in line {} already", quoted(&text), first.line);
                self.duplicates.push(fault(at, message));
            }
            let (event, value_at) = self.next()?;
            let value = self.node(event, value_at, depth + 1)?;
            entries.push((Key { place: at, text }, value));
        }
    }
}

fn refuse_properties(event: &Event<'_>, at: Place) -> Result<(), ConfigError> {
    let (anchor, tag) = match event {
        Event::Alias(_) | Event::UnresolvedAlias(_) => {
            return Err(fault(at, "found an alias (*name); write the value out"));
        }
        Event::Scalar(_, _, anchor, tag) => (*anchor, tag.is_some()),
        Event::SequenceStart(_, anchor, tag) | Event::MappingStart(_, anchor, tag) => {
            (*anchor, tag.is_some())
        }
        _ => (0, false),
    };
    match (anchor, tag) {
        (0, false) => Ok(()),
        (0, true) => Err(fault(at, "found a tag (!name); write the plain value")),
        _ => Err(fault(at, "found an anchor (&name); write the value out where it is needed")),
    }
}
