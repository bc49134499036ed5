package eventlog

// Permissions are the NATS subjects that a user needs; everything else is to be
// denied. Deploy configurations are made of them.
//
// A filter is no protection: who may create consumers on a stream, or get
// messages from it, reaches all of it. So each tier has a stream, a user and an
// inbox of its own, and none that of another. The inbox matters as much: with
// NATS's own prefix everybody could listen to what everybody is sent.
//
// What a server stores at the wish of a user, by a consumer that delivers to a
// subject of another stream, names the stream it came from and is refused.
type Permissions struct {
	Publish, Subscribe []string
	// Inbox goes into ConnectOptions.
	Inbox string
}

// ReaderPermissions are those of a tier: consumers and single messages of its
// own stream, and the question for progress. Its consumers are not acknowledged
// and pull, so there are no subjects for acknowledgements or flow control.
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
			stream + askSubject,
		},
		Subscribe: []string{inbox + ".>"},
		Inbox:     inbox,
	}
}

// RelayPermissions are those of a relay that feeds the streams of tiers: making
// and reading the streams, publishing into them, and hearing the questions.
func (r *Routes) RelayPermissions(tiers []Tier) Permissions {
	p := Permissions{Inbox: "_INBOX_" + r.cluster + "-relay"}
	p.Subscribe = append(p.Subscribe, p.Inbox+".>")
	for _, tier := range tiers {
		stream := r.Stream(tier)
		p.Publish = append(p.Publish, stream+allSubjects)
		for _, verb := range []string{"CREATE", "UPDATE", "INFO", "DELETE", "MSG.GET"} {
			p.Publish = append(p.Publish, "$JS.API.STREAM."+verb+"."+stream)
		}
		p.Subscribe = append(p.Subscribe, stream+askSubject)
	}
	return p
}
