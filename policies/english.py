"""What two English texts may differ in and still ask for the same, word by word.

Three things and no more: words that carry grammar and no matter, the endings of one word, and words
of one line below. Whatever stands in no list here is a name, a thing or a property, and the other
text must have it too; so an opposite needs no list of opposites to be noticed.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.inflection import stem

LIGHT = frozenset(
    """
    a an the this these those that it its itself there here of in on at by to with for as into onto
    upon via through within and so then thus also too such be is are am being been
    please kindly just simply however additionally okay e.g i.e etc whether about which
    order way possible possibility ability able capability capable process
    """.split()
)
"""May stand on one side alone."""

LIGHT_IN_STATEMENTS = frozenset(
    """
    do does doing have has having you your yours one can could will would may be if when once while
    yes well their either any own over do done such like inside during
    together instead up out
    """.split()
)
"""These too, where nothing is asked: who `you` is and whether `can` or `did` decides a question."""

ASKING = frozenset("what who whom whose when where why how which".split())
ORDERING = frozenset(
    """
    tell explain describe write give show list make create generate translate summarize summarise
    find compare convert fix help let name suggest recommend recommend define calculate compute
    solve rewrite draft compose plan design build add remove delete send count check review improve
    correct classify extract complete continue answer say teach provide outline discuss analyze
    analyse evaluate identify turn change put get open close start stop play set book buy order
    imagine act pretend consider
    """.split()
)
OWN = frozenset("i me my mine myself we us our i'm i'd i've i'll let's".split())
"""Who says these wants something."""

AUXILIARIES = frozenset(
    """
    is are am was were do does did can could will would should shall may might must has have had
    isn't aren't wasn't weren't don't doesn't didn't can't couldn't won't wouldn't shouldn't hasn't
    """.split()
)
"""A text that begins with one of these asks, with or without its question mark."""

MARKS = LIGHT | LIGHT_IN_STATEMENTS | ASKING | AUXILIARIES

NEGATIONS = frozenset("no not never none neither nor nobody nothing nowhere cannot without".split())

VOICE = frozenset("by is are be been being was were".split())

_DENIED = {"can't": "can", "cannot": "can", "won't": "will", "shan't": "shall"}

DIRECTIONS = frozenset("from than before after until since off".split())
"""Who stands on which side of these is the question."""

_SYNONYMS = """
    use utilize utilise usage utilization utilisation
    help assist aid
    show display
    purpose goal aim objective
    large big
    fast quick rapid quickly rapidly
    several multiple various many numerous variety
    same identical equal
    directory folder
    additional extra further
    example illustration instance sample
    simple easy easily simply
    entire whole
    image picture
    begin start commence
    end finish
    buy purchase
    error mistake
    fix repair
    remove delete
    explain describe
    important crucial essential vital
    illness disease
    people persons
    photo photograph
    doctor physician
    car automobile
    movie film
    happen occur
    maximum max
    minimum min
    recommend suggest
    numeric numerical
    want wish
    similar alike
    useful beneficial helpful advantageous
"""
"""Each line one meaning, and no word in two lines."""

_LOOSE = """
    use utilize utilise employ usage utilization utilisation leverage apply
    provide offer supply furnish give pass return yield
    create make build construct craft generate produce generation creation generator
    allow enable permit let
    help assist aid facilitate
    show display exhibit demonstrate
    get obtain acquire retrieve fetch access load find gain
    specify define indicate determine state mention set configure configuration setting configurable
    purpose goal objective aim target
    need require necessary requirement
    contain include incorporate comprise consist hold encompass cover
    instruction direction guidance guide guideline advice
    information data detail knowledge
    function method technique procedure
    parameter argument
    run execute
    check verify detect confirm validate
    transform convert transformation conversion cast
    split divide division
    organize organise arrange
    large big huge
    fast quick rapid quickly rapidly faster
    store keep save storage storing
    choose select pick selection choice selecting
    change alter modify switch rename
    iterate loop cycle iteration traverse
    simple easy straightforward uncomplicated easily convenient conveniently simply
    entire whole complete completely fully entirely wholly
    type kind sort
    begin start commence launch initiate
    remove delete eliminate
    particular specific certain
    share distribute disseminate
    location place locate located
    explain describe clarify explanation description depiction
    difference distinction
    cost price
    job task
    number amount quantity count
    exist available
    size dimension
    name title label nomenclature designation
    follow adhere
    safe secure protect
    typical usual normal typically usually normally default
    replace substitute
    call invoke
    handle process manipulate manage management manipulation processing handling
    add insert
    combine merge amalgamate
    upload submit
    library package framework
    want wish desire
    support compatible accommodate
    correspond associate relate
    similar alike analogous
    separate individual separately individually independently
    map assign
    represent embody denote signify stand
    depend rely
    base basis foundation
    chunk segment
    prevent avoid
    text textual
    visual vision
    update refresh revise
    shuffle randomize mix
    learn understand
    accept take
    search query
    attribute feature property
    specification spec
    documentation document doc
    direct directly
    exact exactly precise precisely
    especially particularly
    inherit derive
    expect anticipate
    convention standard
    section part portion piece
    wrap encapsulate
    consider think
    filter sift
    inspect examine survey investigate
    bring import
    unique distinctive
    already pre
    under below
    infer deduce
    enumerate list
    customize customise tailor personalize
    monitor track
    calculate compute calculation computation
    prior previous previously earlier
    extract unpack
    runtime environment
    distinct different
    populate fill
    gather collect assemble accumulate
    enhance improve
    reduce decrease lower diminish
    increase raise
    connect link
    enough sufficient
    try attempt
    answer reply respond response
    hard difficult challenging
    clever smart intelligent
    sick ill
    reach attain achieve accomplish
    own possess
    often frequently frequent
    small little tiny
    main principal primary chief
    mandatory compulsory obligatory
    ensure guarantee assure
    depict portray
    refer consult
    translate render
    manner fashion
    approach strategy
    copy duplicate
    first initial initially
    last final finally
    stop halt cease
    continue resume proceed
    stay remain
    hide conceal
    send transmit deliver dispatch
    move transfer relocate
    put position
    region area zone
    border boundary
    limit restrict constrain
    restriction limitation constraint
    install installation setup
    prepare preparation
    structure format layout schema
    result outcome consequence
    problem issue trouble
    solve resolve solution
    exclude omit skip
    drop discard
    only solely merely exclusively
    program application app software
    company firm business
    street road
    city town
    country nation
    child kid
    baby infant
    latest recent newest
    train training
    evaluate evaluation assess assessment
    compare comparison
    transcribe transcription
    annotate annotation
    integrate integration
    decide decision
    concatenate concatenation append
    interact interaction communicate
    authenticate authentication
    predict prediction
    classify classification
    implement implementation
    interface api
    optimize optimise optimization
    visualize visualise visualization
    automatic automatically
    temporary temporarily
    sequential sequentially
    random randomly
    immediate immediately instantly
    permanent permanently
    manual manually
    progressive progressively gradually
    initialize initialise
    reuse recycle
    together jointly
    tool utility instrument
    teach educate
    speed pace velocity
    cheap inexpensive
    expensive costly
    famous well-known renowned
    wealthy rich
    advanced sophisticated
    overview summary
    topic subject
    reference citation
    row line
    tidy neat
    per according
    wait await
    consume consumption
"""
"""As those, but only where nothing is asked or ordered."""


def _meanings(lines: str) -> dict[str, str]:
    groups = filter(None, map(str.split, lines.splitlines()))
    return {stem(word): f"={words[0]}" for words in groups for word in words}


_MEANINGS = _meanings(_SYNONYMS)
_LOOSE_MEANINGS = _MEANINGS | _meanings(_LOOSE)


def meaning(word: str, *, loose: bool) -> str:
    """The same for words that mean the same; anything else is its stem."""
    stemmed = stem(word)
    return (_LOOSE_MEANINGS if loose else _MEANINGS).get(stemmed, stemmed)


def _all(words: str) -> frozenset[str]:
    return frozenset(meaning(word, loose=True) for word in words.split())


MARKED = _all(
    """
    all every each only some most least first last must should never always more less same
    other both few many was were did they them where who why what
    """
)
"""Never on one side alone."""

CONNECTING = _all("use provide allow serve work support help")
"""Where nothing is asked, these say that two things go together, and not what goes: `with X you do
Y`, `X allows Y`, `use X for Y`."""

VAGUE = _all(
    """
    information function class option value exist contain specify follow explain purpose useful
    take find get redirect click capability achieve perform act link
    """
)
SPARE = VAGUE | _all(
    """
    need own create type single new how also file object process instruction
    example collection different base store sequence know go afterward
    """
)
"""Where nothing is asked, one text may say these as well, if the other says nothing instead."""


def denied(word: str) -> str | None:
    """The verb that a word denies, empty where it denies without one; None if it denies nothing."""
    if word.endswith("n't"):
        return _DENIED.get(word, word.removesuffix("n't"))
    if word in NEGATIONS:
        return _DENIED.get(word, "")
    return None


def is_english(words: Sequence[str], *, least: int) -> bool:
    """Are so many of the words, and one in eight, such as every English text has?"""
    marks = sum(word in MARKS for word in words)
    return marks >= max(least, len(words) / 8)
