package eventlog

// Permissions are the NATS subjects that a user needs; deny everything else. Deployments
// generate their configuration from them.
//
// A filter protects nothing: a user who may create consumers on a stream, or get messages from
// it, can read all of it. So each tier has its own stream, user and inbox, and no access to
// those of another tier. The inbox matters as much as the stream: with NATS's default prefix,
// every user could read the replies to every other user.
//
// A consumer may deliver to a subject of another stream, which makes the server store messages
// there. Those messages name the stream they came from and are refused.
type Permissions struct {
	Publish, Subscribe []string
	// Inbox belongs in ConnectOptions.
	Inbox string
}

// ReaderPermissions returns the permissions of a tier's readers: consumers and single messages
// of its own stream, and requests for progress. Readers use pull consumers without
// acknowledgements, so they need no subjects for acknowledgements or flow control.
func (r *Routes) ReaderPermissions(tier Tier) Permissions {
	stream := r.Stream(tier)
	inbox := "_INBOX_" + stream
	return Permissions{
		Publish: []string{
			"$JS.API.STREAM.INFO." + stream,
			"$JS.API.STREAM.MSG.GET." + stream,
			"$JS.API.CONSUMER.CREATE." + stream + ".>",
			"$JS.API.CONSUMER.INFO." + stream + ".>",
			"$JS.API.CONSUMER.MSG.NEXT." + stream + ".>",
			"$JS.API.CONSUMER.DELETE." + stream + ".>",
			stream + progressRequestSubject,
		},
		Subscribe: []string{inbox + ".>"},
		Inbox:     inbox,
	}
}

// RelayPermissions returns the permissions of a relay that publishes the streams of tiers:
// create, configure and read the streams, publish to them, and receive requests for progress.
func (r *Routes) RelayPermissions(tiers []Tier) Permissions {
	p := Permissions{Inbox: "_INBOX_" + r.cluster + "-relay"}
	p.Subscribe = append(p.Subscribe, p.Inbox+".>")
	for _, tier := range tiers {
		stream := r.Stream(tier)
		p.Publish = append(p.Publish, stream+allSubjects)
		for _, verb := range []string{"CREATE", "UPDATE", "INFO", "DELETE", "MSG.GET"} {
			p.Publish = append(p.Publish, "$JS.API.STREAM."+verb+"."+stream)
		}
		p.Subscribe = append(p.Subscribe, stream+progressRequestSubject)
	}
	return p
}
