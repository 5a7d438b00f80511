//! `log`.

use std::collections::VecDeque;

use cloche_proto::agent::v1alpha1::LogRequest;
use cloche_proto::frame::MAIN_BEFORE;

use crate::args::Log;
use crate::backend::{Backend, Failure, Outage};
use crate::error::Error;
use crate::session::{Received, State};
use crate::terminal::{Sink, notice};

/// Prints what a command has written.
pub(super) async fn log(backend: &Backend, args: &Log) -> Result<(), Error> {
    let mut sink = Sink::start().map_err(Error::Runtime)?;
    let outcome = copy(backend, args, &sink).await;
    // First, so that an error's message comes after the output.
    sink.finish(&mut VecDeque::new()).await?;
    outcome
}

async fn copy(backend: &Backend, args: &Log, sink: &Sink) -> Result<(), Error> {
    let mut state = State::reader(args.tail_bytes.is_some());
    let mut outage: Option<Outage> = None;
    let mut reached = false;
    let mut begun = false;
    let operation = format!("read the log of sandbox {}", args.name);
    loop {
        // After a break it goes on where it was; what was not seen yet begins as it would have then.
        let [stdout, stderr] = state.offsets();
        let request = LogRequest {
            command_id: if args.previous {
                MAIN_BEFORE.to_owned()
            } else {
                args.command_id.clone().unwrap_or_default()
            },
            follow: args.follow,
            tail_bytes: args.tail_bytes.unwrap_or(0),
            stdout_offset: stdout.filter(|_| begun),
            stderr_offset: stderr.filter(|_| begun),
            ..LogRequest::default()
        };
        let broken = match backend.log(&args.name, request).await {
            Err(failure) => failure,
            Ok(mut replies) => loop {
                reached = true;
                let reply = match replies.next().await {
                    Ok(Some(reply)) => reply,
                    Ok(None) => return Ok(()),
                    Err(failure) => break failure,
                };
                outage = None;
                begun = true;
                let received = state.receive(reply).map_err(|message| Error::Wrong {
                    operation: operation.clone(),
                    message,
                })?;
                let Received::Output { stream, lost, data } = received else {
                    continue;
                };
                let gap = (lost > 0).then(|| notice(&format!("{lost} bytes are no longer kept")));
                let data = (!data.is_empty()).then_some((stream, data));
                for piece in gap.into_iter().chain(data) {
                    match sink.room().await {
                        Some(room) => drop(room.send(piece)),
                        // Why, `finish` tells.
                        None => return Ok(()),
                    }
                }
            },
        };
        let last = match broken {
            Failure::Broken(message) => message,
            Failure::Unconnected(problem) if outage.is_some() => problem.to_string(),
            Failure::Absent(problem)
                if reached || !outage.as_ref().is_some_and(Outage::is_an_absence) =>
            {
                problem.to_string()
            }
            failure => return Err(failure.error(operation)),
        };
        let outage = outage.get_or_insert_with(Outage::begin);
        if outage.is_too_long() {
            return Err(Error::Lost {
                operation,
                seconds: outage.seconds(),
                last,
                left: "the log may go on".to_owned(),
            });
        }
        tokio::time::sleep(outage.pause()).await;
    }
}
