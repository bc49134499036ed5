package etcdstore

import "triune.dev/shared/storage/kv"

const (
	// firstPage is the number of keys read at first where the client set no
	// limit, while nothing is known about their size.
	firstPage = 500
	// maxPage bounds the keys of a page, also where a client asks for more.
	maxPage = 10000
	// pageBytes is the size to aim at for a page; etcd and this process hold a page in
	// memory several times.
	pageBytes = 16 << 20
)

// pager chooses how many keys to ask etcd for next.
type pager struct {
	// limit is the client's, 0 if it has none.
	limit int64
	// size is the number of keys to ask for next.
	size int64
}

func newPager(limit int64) pager {
	if limit > 0 {
		return pager{limit: limit, size: min(limit, maxPage)}
	}
	return pager{size: firstPage}
}

// after takes the page just read into account. With a client's limit the page
// doubles: another one is only needed where the selector drops objects, and
// then it probably goes on doing so. Without one it aims at pageBytes.
func (p *pager) after(page kv.Page) {
	if p.limit > 0 {
		p.size = min(2*p.size, maxPage)
		return
	}
	bytes := 0
	for _, item := range page.KVs {
		bytes += len(item.Key) + len(item.Value)
	}
	p.size = fitPage(len(page.KVs), bytes)
}

// fitPage returns how many keys of the average size seen weigh pageBytes.
func fitPage(keys, bytes int) int64 {
	if keys == 0 || bytes == 0 {
		return maxPage
	}
	return int64(min(max(pageBytes/max(bytes/keys, 1), firstPage), maxPage))
}

// following is the first key after last.
func following(last []byte) string { return string(last) + "\x00" }
