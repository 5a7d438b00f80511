//! `ls`.

use std::collections::HashMap;

use jiff::Timestamp;

use super::print;
use super::watch::Steady;
use crate::args::{Ls, Output};
use crate::backend::{Backend, Change, Selection};
use crate::error::Error;
use crate::object::list::{self, Form};
use crate::object::{Object, text};

/// Prints the sandboxes.
pub(super) async fn ls(backend: &Backend, args: &Ls) -> Result<(), Error> {
    let form = Form {
        one: args.names.len() == 1,
        namespaces: args.all_namespaces,
    };
    let selection = if args.all_namespaces {
        Selection::Everywhere(args.selector.clone())
    } else {
        Selection::All(args.selector.clone())
    };
    let mut objects = Vec::new();
    if args.names.is_empty() {
        objects = backend.list(&selection).await?;
        if objects.is_empty() && args.output.is_none() && !args.watch {
            // On stderr as kubectl does, so that scripts count no line.
            use std::io::Write as _;
            drop(writeln!(std::io::stderr(), "No sandboxes found."));
            return Ok(());
        }
    }
    for name in &args.names {
        objects.push(backend.get(name).await?);
    }
    if args.watch {
        return follow(backend, &selection, objects, args.output, form).await;
    }
    shown(&objects, args.output, form)
}

fn shown(objects: &[Object], output: Option<Output>, form: Form) -> Result<(), Error> {
    let text = list::print(objects, output, form, Timestamp::now());
    print(&text.map_err(|message| Error::Wrong {
        operation: "print sandboxes".to_owned(),
        message,
    })?)
}

/// Prints `objects`, and then each whenever it changes, for ever.
async fn follow(
    backend: &Backend,
    selection: &Selection,
    objects: Vec<Object>,
    output: Option<Output>,
    form: Form,
) -> Result<(), Error> {
    let mut printer = Printer {
        output,
        form: Form { one: true, ..form },
        widths: None,
    };
    printer.all(&objects)?;
    let mut known: HashMap<_, Object> = objects
        .into_iter()
        .map(|object| (key(&object), object))
        .collect();
    let mut changes = Steady::new(backend, selection);
    loop {
        let object = match changes.next("watch sandboxes").await? {
            // Told again whenever the stream is opened.
            Change::Present(object) if known.get(&key(&object)) == Some(&object) => continue,
            Change::Present(object) => {
                known.insert(key(&object), object.clone());
                object
            }
            Change::Deleted(object) => {
                known.remove(&key(&object));
                object
            }
            Change::Absent => continue,
        };
        printer.one(&object)?;
    }
}

fn key(object: &Object) -> (Option<String>, String) {
    (object.word("/metadata/namespace"), object.name())
}

/// Prints objects one after another in one form.
struct Printer {
    output: Option<Output>,
    form: Form,
    /// Of the table's columns, as the first objects made them.
    widths: Option<Vec<usize>>,
}

impl Printer {
    fn is_table(&self) -> Option<bool> {
        match self.output {
            None => Some(false),
            Some(Output::Wide) => Some(true),
            Some(Output::Json | Output::Yaml | Output::Name) => None,
        }
    }

    fn all(&mut self, objects: &[Object]) -> Result<(), Error> {
        let Some(wide) = self.is_table() else {
            return objects.iter().try_for_each(|object| self.one(object));
        };
        let rows = list::rows(objects, wide, self.form, Timestamp::now());
        let widths = self.widths.insert(text::widths(&rows));
        let lines: String = rows.iter().map(|row| text::line(row, widths)).collect();
        print(&lines)
    }

    fn one(&mut self, object: &Object) -> Result<(), Error> {
        match (self.is_table(), &self.widths) {
            (Some(wide), Some(widths)) => {
                let row = list::row(object, wide, self.form, Timestamp::now());
                print(&text::line(&row, widths))
            }
            (Some(_), None) => self.all(std::slice::from_ref(object)),
            (None, _) => {
                if self.output == Some(Output::Yaml) {
                    print("---\n")?;
                }
                shown(std::slice::from_ref(object), self.output, self.form)
            }
        }
    }
}
